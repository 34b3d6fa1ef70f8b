"""The whole engine under random traffic: nothing lost, nobody starved, every text as if alone."""

from dataclasses import replace

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from outrider_worker.engine.plans import Plan, Probe
from outrider_worker.engine.scheduler import SchedulerLimits
from outrider_worker.engine.types import RequestKey, SpeculationLimits
from outrider_worker.kv import PAGE_TOKENS
from outrider_worker.speculate.device_ngram import DeviceNgramDrafter
from outrider_worker.speculate.draft_model import DraftModel
from outrider_worker.speculate.ngram import NgramDrafter
from outrider_worker.speculate.scripted import ScriptedDrafter, listed
from outrider_worker.streams import ImmediateStream
from tests.support.device_scripted import DeviceScripted
from tests.support.engines import static_plan, tiny_model
from tests.support.lazy_stream import LazyStream
from tests.support.tiny_models import VOCAB_SIZE
from tests.support.traffic import LONGEST_ANSWER_TOKENS, VOICES, Voice, continuations, sent
from tests.support.watched import Watched

K = 5
RIGHT = (5, 0, 2, 1)
DRAFTERS = (
    *("none", "ngram", "device ngram", "both ngram"),
    *("scripted", "device scripted", "device scripted", "device draft"),
)
OWNERS = "abcd"

LONG = [voice for voice in VOICES if len(voice.prompt_ids) > PAGE_TOKENS]
# Those that share pages twice as often: beginnings are published, awaited, cut short.
voices = st.sampled_from([*VOICES, *LONG])
lengths = st.integers(1, LONGEST_ANSWER_TOKENS)
caps = st.sampled_from([None, None, 0, 2])


def _drafters(kind: str) -> dict[str, object]:
    parts: dict[str, object] = {}
    if kind in ("ngram", "both ngram"):
        parts["drafter"] = NgramDrafter(K)
    if kind in ("device ngram", "both ngram"):
        parts["device_drafter"] = DeviceNgramDrafter(K)
    if kind == "scripted":
        parts["drafter"] = ScriptedDrafter(continuations(), listed(RIGHT), VOCAB_SIZE, K)
    if kind == "device scripted":
        parts["device_drafter"] = DeviceScripted(continuations(), RIGHT, VOCAB_SIZE, K, sparse=True)
    if kind == "device draft":
        parts["device_drafter"] = DraftModel(tiny_model().model, VOCAB_SIZE, VOCAB_SIZE, K)
    return parts


class EngineByTraffic(RuleBasedStateMachine):
    """Anything that can reach an engine from outside, in any order, between any two steps."""

    engine: Watched

    def __init__(self) -> None:
        super().__init__()
        self.sent_requests = 0
        self.drafter = ""

    @initialize(
        kind=st.sampled_from(DRAFTERS),
        lazy=st.booleans(),
        pages=st.integers(3, 9),
        running=st.integers(1, 5),
        rows=st.integers(6, 24),
        chunk=st.integers(5, 64),
        cached=st.booleans(),
    )
    def begin(
        self,
        kind: str,
        lazy: bool,
        pages: int,
        running: int,
        rows: int,
        chunk: int,
        cached: bool,
    ) -> None:
        limits = SchedulerLimits(running, 192, rows, prefill_chunk_tokens=chunk)
        self.drafter = kind.rpartition(" ")[2]
        self.engine = Watched(
            limits,
            stream=LazyStream() if lazy else ImmediateStream(),
            pool_pages=pages + 1,
            prefix_cache=cached,
            max_draft_tokens=K,
            **_drafters(kind),
        )
        self.engine.offer(lambda version: static_plan(self.drafter, 3, version=version))

    @rule(
        voice=voices,
        tokens=lengths,
        resumed=st.sampled_from([0, 0, 3, 30]),
        salt=st.sampled_from([b"", b"", b"other"]),
        steps=st.sampled_from([None, None, None, 2, 15]),
        cap=caps,
        owner=st.sampled_from(OWNERS),
    )
    def submit(
        self,
        voice: Voice,
        tokens: int,
        resumed: int,
        salt: bytes,
        steps: int | None,
        cap: int | None,
        owner: str,
    ) -> None:
        self.sent_requests += 1
        request = sent(
            voice,
            RequestKey(owner, f"r{self.sent_requests}"),
            tokens,
            resumed_tokens=resumed,
            tenant_salt=salt,
            deadline_s=None if steps is None else self.engine.clock() + steps,
            speculation=SpeculationLimits(max_draft_tokens=cap),
        )
        self.engine.send(request)

    @rule(tokens=lengths)
    def submit_choices(self, tokens: int) -> None:
        """One request id, three choices of one prompt."""
        self.sent_requests += 1
        key = RequestKey("a", f"r{self.sent_requests}")
        choices = [voice for voice in VOICES if voice.prompt_ids == VOICES[6].prompt_ids]
        assert [voice.choice_index for voice in choices] == [0, 1, 2]
        self.engine.send(*(sent(voice, key, tokens) for voice in choices))

    @precondition(lambda self: self.engine.live)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.engine.cancel(data.draw(st.sampled_from(list(self.engine.live))))

    @precondition(lambda self: self.engine.scheduler.running)
    @rule(data=st.data())
    def preempt(self, data: st.DataObject) -> None:
        self.engine.scheduler.preempt(data.draw(st.sampled_from(self.engine.scheduler.running)))

    @rule(
        tokens=st.integers(0, K + 2),
        verify=st.integers(0, 9),
        cap=st.sampled_from([K, K, 0, 2]),
        weight=st.sampled_from([0.0, 1.0, 4.0]),
    )
    def change_plan(self, tokens: int, verify: int, cap: int, weight: float) -> None:
        def plan(version: int) -> Plan:
            budget = static_plan(
                self.drafter, tokens, verify=lambda n, d: min(verify, n * d), version=version
            )
            return replace(
                budget,
                class_caps={"sampled": cap},
                class_weights={"greedy": weight},
                probe=Probe(cohort_share=0.3, plain_share=0.2, draft_tokens=2),
            )

        self.engine.offer(plan)

    @rule(owner=st.sampled_from(OWNERS), drain=st.sampled_from([False] * 7 + [True]))
    def drop_or_drain(self, owner: str, drain: bool) -> None:
        if drain:
            self.engine.end_all()
        else:
            self.engine.drop_owner(owner)

    @rule(steps=st.integers(1, 12))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            self.engine.step()

    def teardown(self) -> None:
        if hasattr(self, "engine"):
            self.engine.finish()


# Nothing is shrunk: that takes longer than a test may, and the steps that failed are few as it is.
TestEngineByTraffic = EngineByTraffic.TestCase
TestEngineByTraffic.settings = settings(
    max_examples=25,
    stateful_step_count=25,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
)
