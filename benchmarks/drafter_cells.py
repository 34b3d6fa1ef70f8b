"""One kind of text decoded in all ways in turn: off, fixed draft lengths, a policy.

Knows: the worker with its drafters, what a way is, what a turn gives. Does not know: options,
which cells are measured, where results go.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from statistics import median
from typing import Any

from benchmarks.gpu.engines import static_plan
from benchmarks.in_process import Decoded, SteppedEngine
from benchmarks.measure import Series
from benchmarks.predicted import edited
from benchmarks.prompts import PROMPTS
from outrider_router.text.model_text import ModelText, TextAssets
from outrider_router.text.template import Conversation
from outrider_worker.assembly import Assembly, assemble
from outrider_worker.engine.tally import AcceptanceCell
from outrider_worker.engine.types import RequestKey, RequestSpec, SamplingParams, SpeculationLimits
from outrider_worker.heads import shipped_head
from outrider_worker.model.gguf import converted_folder
from outrider_worker.model.resolve import DEMO, resolve_model
from outrider_worker.settings import WorkerSettings
from outrider_worker.speculate.drafter import PREDICTED

HOSTS = ("ngram", "suffix", PREDICTED)
MAX_DRAFT_TOKENS, MAX_REQUESTS = 8, 8
EDIT = "edit"
EDIT_EVERY_WORDS = 20
OFF = "off"


@dataclass(frozen=True)
class Scope:
    """How much is measured; the short one is for a look and leaves no result."""

    kinds: tuple[str, ...] = ("copy", "code", "chat", EDIT)
    fixed: tuple[int, ...] = (2, 4, MAX_DRAFT_TOKENS)
    fixed_trained: tuple[int, ...] = (1, 2, MAX_DRAFT_TOKENS)
    """Of a trained drafter, whose every token takes time."""
    prompts: int = 2
    tokens: int = 48
    edit_tokens: int = 96
    """Long ones, as edits are: drafts that hold end them soon."""

    def tokens_of(self, kind: str) -> int:
        """Of one answer."""
        return self.edit_tokens if kind == EDIT else self.tokens


SHORT = Scope(
    kinds=("code", EDIT),
    fixed=(MAX_DRAFT_TOKENS,),
    fixed_trained=(1, MAX_DRAFT_TOKENS),
    prompts=1,
    tokens=32,
    edit_tokens=64,
)


@dataclass(frozen=True)
class Setting:
    """The worker with all its drafters, and the model's text side."""

    assembly: Assembly
    text: ModelText
    policy: str
    scope: Scope

    @classmethod
    def open(cls, threads: int, policy: str, scope: Scope) -> "Setting":
        folder = converted_folder(resolve_model(DEMO))
        head = shipped_head(folder)
        settings = WorkerSettings(
            planner="",
            threads=threads,
            drafter=",".join([*HOSTS, *([str(head)] if head else [])]),
            max_draft=MAX_DRAFT_TOKENS,
            max_running=MAX_REQUESTS,
            context=512,
            kv_gib=0.5,
            prefix_cache=False,
        )
        config = (folder / "tokenizer_config.json").read_bytes()
        assets = TextAssets((folder / "tokenizer.json").read_bytes(), config, "")
        text = ModelText(assets, lambda: datetime.now(UTC))
        return cls(assemble(settings), text, policy, scope)

    @property
    def drafters(self) -> list[str]:
        return [traits.name for traits in self.assembly.drafter_traits]

    def prompt_ids(self, prompt: str) -> tuple[int, ...]:
        chat = Conversation([{"role": "user", "content": prompt}])
        return tuple(self.text.encode_chat(chat).ids)

    def edited_ids(self, answer: Sequence[int]) -> tuple[int, ...]:
        """A client's prediction of an answer: the answer but for a few words."""
        words = edited(self.text.tokenizer.decode(answer), EDIT_EVERY_WORDS)
        return tuple(self.text.encode_answer(words))


@dataclass
class Way:
    """One way to decode, and what it gave in each turn."""

    engine: SteppedEngine
    drafter: str
    draft_tokens: int | None
    """None: as the policy plans."""
    turns: list[Decoded] = field(default_factory=list)
    ratios: Series = field(default_factory=Series)

    @property
    def tokens_per_round(self) -> float:
        return median(turn.tokens_per_round for turn in self.turns)

    @property
    def verified_per_round(self) -> float:
        """Drafts verified of one request."""
        return median(turn.verified_per_round for turn in self.turns)

    def summary(self) -> dict[str, Any]:
        return {
            "tokens_per_round": round(self.tokens_per_round, 3),
            "verified_per_round": round(self.verified_per_round, 3),
            "over_off": self.ratios.summary(),
        }

    def acceptance(self) -> AcceptanceCell:
        """Drafts of all turns, by position."""
        cell = AcceptanceCell()
        for turn in self.turns:
            for outcome in (each for record in turn.records for each in record.outcomes):
                if outcome.drafter == self.drafter and outcome.asked_tokens:
                    cell.add(outcome)
        return cell

    def draft_ms(self) -> float:
        """Of one round that drafted, with the feeding of the drafter's state."""
        times = [r.times for turn in self.turns for r in turn.records if r.next_draft_tokens]
        return round(median(1e3 * (t.draft_s + t.feed_s) for t in times), 3) if times else 0.0


class Cell:
    """One kind of text at one temperature and one number of requests, in all ways in turn."""

    def __init__(
        self,
        setting: Setting,
        kind: str,
        temperature: float,
        requests: int,
        drafters: Sequence[str],
    ) -> None:
        self._setting = setting
        self._kind = kind
        self._temperature = temperature
        self._requests = requests
        self._off = SteppedEngine.fixed(setting.assembly, static_plan(OFF, 0, MAX_REQUESTS))
        self._off_speeds, self._noise = Series(), Series()
        self._ways = {name: list(self._ways_of(name)) for name in drafters}

    def measure(self) -> list[dict[str, Any]]:
        """A row for each drafter."""
        prompts = PROMPTS["code" if self._kind == EDIT else self._kind]
        count, scope = self._requests, self._setting.scope
        self._warm_up(prompts[-count:])
        batches = [prompts[i : i + 1] for i in range(scope.prompts)]
        for number, batch in enumerate(batches if count == 1 else [prompts[:count]]):
            self._turn(number, batch)
        return [self._row(name) for name in self._ways]

    def _ways_of(self, drafter: str) -> Iterator[Way]:
        assembly = self._setting.assembly
        scope = self._setting.scope
        for tokens in scope.fixed if drafter in HOSTS else scope.fixed_trained:
            plan = static_plan(drafter, tokens, MAX_REQUESTS)
            yield Way(SteppedEngine.fixed(assembly, plan), drafter, tokens)
        planned = SteppedEngine.planned(assembly, self._setting.policy)
        yield Way(planned, drafter, None)

    def _warm_up(self, prompts: Sequence[str]) -> None:
        """The policies learn, and every shape has run."""
        answers = self._off.decode(self._specs(prompts))
        for ways in self._ways.values():
            ways[-1].engine.decode(self._specs(prompts, ways[-1].drafter, answers))

    def _turn(self, number: int, prompts: Sequence[str]) -> None:
        """Off, all ways beginning with another one each turn, off."""
        plain = self._off.decode(self._specs(prompts))
        ways = [way for each in self._ways.values() for way in each]
        start = number * len(ways) // self._setting.scope.prompts
        for way in ways[start:] + ways[:start]:
            decoded = way.engine.decode(self._specs(prompts, way.drafter, plain))
            if decoded.token_ids != plain.token_ids:
                raise AssertionError(f"{way.drafter}, K {way.draft_tokens}: not the text of off")
            way.turns.append(decoded)
        again = self._off.decode(self._specs(prompts))
        off = (plain.tokens_per_s + again.tokens_per_s) / 2
        self._off_speeds.add(off)
        self._noise.add(again.tokens_per_s / plain.tokens_per_s)
        for way in ways:
            way.ratios.add(way.turns[-1].tokens_per_s / off)

    def _specs(
        self, prompts: Sequence[str], drafter: str = "", answers: Decoded | None = None
    ) -> list[RequestSpec]:
        """Requests that `drafter` drafts for, nobody where it is empty."""
        return [
            RequestSpec(
                RequestKey("bench", f"{number}"),
                self._setting.prompt_ids(prompt),
                SamplingParams(
                    temperature=self._temperature,
                    seed=number,
                    max_tokens=self._setting.scope.tokens_of(self._kind),
                    ignore_eos=True,
                ),
                speculation=SpeculationLimits(enabled=bool(drafter), drafter=drafter),
                prediction_ids=self._prediction(drafter, answers, f"{number}"),
            )
            for number, prompt in enumerate(prompts)
        ]

    def _prediction(self, drafter: str, answers: Decoded | None, name: str) -> tuple[int, ...]:
        if drafter != PREDICTED or answers is None:
            return ()
        return self._setting.edited_ids(answers.token_ids[name])

    def _row(self, drafter: str) -> dict[str, Any]:
        *fixed, planned = self._ways[drafter]
        longest, best = fixed[-1], max(fixed, key=lambda way: way.ratios.median)
        drafts = longest.acceptance()
        return {
            "kind": self._kind,
            "temperature": self._temperature,
            "requests": self._requests,
            "drafter": drafter,
            "off_tokens_per_s": self._off_speeds.summary(),
            "off_again_over_off": self._noise.summary(),
            "drafted_share": round(sum(drafts.drafted[:1]) / max(drafts.asked, 1), 3),
            "accepted_by_position": accepted_shares(drafts.accepted, drafts.verified),
            "verified_by_position": drafts.verified,
            "draft_ms": longest.draft_ms(),
            "fixed": {str(way.draft_tokens): way.summary() for way in fixed},
            "best_fixed_k": best.draft_tokens,
            self._setting.policy: planned.summary(),
            "load_average": round(os.getloadavg()[0], 2),
        }


def accepted_shares(accepted: Sequence[int], verified: Sequence[int]) -> list[float]:
    """Of the drafts verified at each position, those that held, and all before them."""
    padded = [*accepted, *[0] * (len(verified) - len(accepted))]
    return [round(a / v, 3) for a, v in zip(padded, verified, strict=True)]
