"""What the target is asked, so that its answers can be trained on.

Built-in prompts come from templates: narrow families, bounded, the same for the same seed. One in
`HELD_OUT_ONE_IN` of them, by a fixed hash of the text, is never trained on, and neither is any of
the families OUT_OF_FAMILY: what a drafter is worth is measured on those. Of a file of prompts half
is held out by the same hash, so that benchmarks can use that half whoever trained.

Knows: texts. Does not know: tokenizers, models.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from random import Random

from outrider_worker.train import phrases

HELD_OUT_ONE_IN = 16
FILE_HELD_OUT_ONE_IN = 2
FROM_FILE = "file"


class PromptFileError(Exception):
    """A file of prompts cannot be used; the message names the line."""


@dataclass(frozen=True)
class Prompt:
    """One question to the target, as a user would send it."""

    family: str
    text: str
    held_out: bool
    """Never trained on."""


def is_held_out(text: str, one_in: int) -> bool:
    """The same for the same text wherever and whenever it is asked."""
    return int.from_bytes(sha256(text.encode()).digest()[:8], "big") % one_in == 0


def builtin_prompts(count: int, seed: int = 0) -> Iterator[Prompt]:
    """`count` different prompts, families taking turns by weight. Same seed, same prompts."""
    random, seen = Random(f"prompts/{seed}"), set[str]()
    families = list(_FAMILIES)
    weights = [_FAMILIES[family][0] for family in families]
    while len(seen) < count:
        (family,) = random.choices(families, weights)
        text = _FAMILIES[family][1](random)
        if text not in seen:
            seen.add(text)
            outside = family in OUT_OF_FAMILY
            yield Prompt(family, text, outside or is_held_out(text, HELD_OUT_ONE_IN))


def read_prompts(path: Path) -> list[Prompt]:
    """The prompts of a file: JSON lines with a "prompt", or plain text with one prompt a line.

    Raises PromptFileError naming what is wrong.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise PromptFileError(f"{path} cannot be read: {error}") from error
    as_json = path.suffix in (".jsonl", ".json")
    texts = [
        _text_of(path, number, line) if as_json else line.strip()
        for number, line in enumerate(lines, start=1)
        if line.strip()
    ]
    if not texts:
        raise PromptFileError(f"{path} holds no prompts")
    return [
        Prompt(FROM_FILE, text, is_held_out(text, FILE_HELD_OUT_ONE_IN))
        for text in dict.fromkeys(texts)
    ]


def _text_of(path: Path, number: int, line: str) -> str:
    try:
        text = json.loads(line)["prompt"]
    except (ValueError, KeyError, TypeError) as error:
        raise PromptFileError(f'{path}, line {number}: no JSON object with a "prompt"') from error
    if not isinstance(text, str) or not text.strip():
        raise PromptFileError(f"{path}, line {number}: its prompt is no text")
    return text


def _sentence(random: Random) -> str:
    person, action, thing, place, time = (
        random.choice(words)
        for words in (
            phrases.PEOPLE,
            phrases.ACTIONS,
            phrases.THINGS,
            phrases.PLACES,
            phrases.TIMES,
        )
    )
    return random.choice(
        (
            f"{person} {action} the {thing} near the {place} {time}.",
            f"{time.capitalize()}, {person} {action} a {thing} at the {place}.",
            f"The {thing} that {person} {action} was later seen at the {place}.",
        )
    )


def _paragraph(random: Random, most: int = 4) -> str:
    return " ".join(_sentence(random) for _ in range(random.randint(2, most)))


def _arithmetic(random: Random) -> str:
    a, b, c = random.randint(2, 99), random.randint(2, 99), random.randint(2, 12)
    person, thing = random.choice(phrases.PEOPLE), random.choice(phrases.THINGS)
    return random.choice(
        (
            f"What is {a} + {b}? Show the steps.",
            f"Calculate {a} * {c} step by step.",
            f"{person} buys {c} {thing}s for {a} euros each. How much is that? Explain.",
            f"{person} has {a + b} {thing}s and gives away {b}. How many are left?",
            f"Write the multiplication table of {c} up to 10.",
            f"What is {a * c} divided by {c}? Then add {b} to the result.",
        )
    )


def _list(random: Random) -> str:
    kind, count = random.choice(phrases.KINDS), random.randint(3, 10)
    return random.choice(
        (
            f"List {count} {kind}.",
            f"Give me {count} {kind}, with one sentence about each.",
            f"Name {count} {kind} as a numbered list.",
            f"Make a table with two columns about {count} {kind}.",
        )
    )


def _rewrite(random: Random) -> str:
    tone = random.choice(phrases.TONES)
    return random.choice(
        (
            f"Rewrite the following text so that it is {tone}:\n\n{_paragraph(random)}",
            f"Correct the spelling and grammar of this text:\n\n{_paragraph(random).lower()}",
            f"Put this text into the present tense:\n\n{_paragraph(random)}",
            f"Summarise this text in one sentence:\n\n{_paragraph(random, 6)}",
        )
    )


def _repeat(random: Random) -> str:
    return random.choice(
        (
            f"Copy this text exactly:\n\n{_paragraph(random)}",
            f"Say the following twice:\n\n{_paragraph(random, 3)}",
            f"Write these sentences as a bulleted list:\n\n{_paragraph(random)}",
            f"Which things are mentioned here? Quote each sentence.\n\n{_paragraph(random)}",
        )
    )


def _code(random: Random) -> str:
    name, arguments, what = random.choice(phrases.FUNCTIONS)
    language = random.choice(phrases.LANGUAGES)
    return random.choice(
        (
            f"Write a {language} function `{name}` that {what}.",
            f"Write a {language} function that {what}, with an example of its use.",
            f"Complete this function, which {what}:\n\ndef {name}({arguments}):",
            f"Write unit tests for a Python function `{name}({arguments})` which {what}.",
            f"Explain step by step how a {language} function that {what} works, and show it.",
        )
    )


def _json(random: Random) -> str:
    fields = ", ".join(random.sample(phrases.FIELDS, random.randint(3, 6)))
    count, thing = random.randint(2, 4), random.choice(phrases.THINGS)
    return random.choice(
        (
            f"Write a JSON object that describes a {thing}, with the fields {fields}.",
            f"Make up {count} records with the fields {fields} and show them as a JSON array.",
            f"Turn this into JSON with who, what and where: {_sentence(random)}",
        )
    )


def _chat(random: Random) -> str:
    topic = random.choice(phrases.TOPICS)
    return random.choice(
        (
            f"Tell me about {topic}.",
            f"What should a beginner know about {topic}?",
            f"Why is it worth learning about {topic}?",
            f"Give a short introduction to {topic}.",
            f"What are common mistakes people make with {topic}?",
            f"Explain {topic} in simple words.",
            f"I have a question about {topic}: where do I start?",
            f"What are the most important facts about {topic}?",
        )
    )


def _story(random: Random) -> str:
    person, thing = random.choice(phrases.PEOPLE), random.choice(phrases.THINGS)
    return f"Write a short story about {person}, a {thing} and a {random.choice(phrases.PLACES)}."


def _letter(random: Random) -> str:
    person, place = random.choice(phrases.PEOPLE), random.choice(phrases.PLACES)
    return random.choice(
        (
            f"Write an e-mail to {person} about a lost {random.choice(phrases.THINGS)}.",
            f"Write a letter of complaint to the manager of a {place}.",
            f"Write an invitation to {person} for a party at the {place}.",
        )
    )


_FAMILIES: Mapping[str, tuple[float, Callable[[Random], str]]] = {
    "arithmetic": (2, _arithmetic),
    "list": (3, _list),
    "rewrite": (2, _rewrite),
    "repeat": (1, _repeat),
    "code": (4, _code),
    "json": (2, _json),
    "chat": (6, _chat),
    "story": (0.4, _story),
    "letter": (0.4, _letter),
}
"""Weight and maker of each family."""
OUT_OF_FAMILY = ("story", "letter")
