"""How each token of an answer came about (`speculation_rounds`), exactly, whatever happens."""

from typing import Any

import pytest
import structlog

from outrider.worker.v1 import worker_pb2
from tests.support import tiny_tokenizers as tiny
from tests.support.fake_worker import FakeWorker, Script, resuming, saying
from tests.support.router_stack import RunningRouter, Stack, running_router

pytestmark = pytest.mark.asyncio(loop_scope="module")
TEXT = "The capital of France is Paris 🎉, привет, 東京 and so on."
IDS = tiny.encode(TEXT)
MESSAGES: Any = [{"role": "user", "content": "What is the capital of France?"}]
ASKED = {"x-speculation-report": "tokens"}


async def ask(router: RunningRouter, **options: Any) -> Any:
    create: Any = router.client.chat.completions.create
    headers = options.pop("extra_headers", ASKED)
    return await create(model="tiny", messages=MESSAGES, extra_headers=headers, **options)


async def streamed(router: RunningRouter, index: int = 0, **options: Any) -> list[Any]:
    """A streamed choice's rounds, those of all its chunks."""
    chunks = [chunk async for chunk in await ask(router, stream=True, **options)]
    choices = [c for chunk in chunks for c in chunk.choices if c.index == index]
    return [one for c in choices for one in getattr(c, "speculation_rounds", [])]


def text_of(rounds: list[Any]) -> str:
    raw = b"".join(bytes(token["bytes"]) for one in rounds for token in one["tokens"])
    return raw.decode()


def shape_of(rounds: list[Any]) -> list[tuple[int, int, int, str | None]]:
    """(tokens, accepted, drafted, drafter) of each round."""
    return [(len(one["tokens"]), one["accepted"], one["drafted"], one["drafter"]) for one in rounds]


def drafting(text: str, *sizes: int, drafter: int = 0) -> Script:
    """Rounds of these sizes, each with one draft more than held; a round of one drafted nothing."""
    script = saying(text, *sizes)
    verified = [len(ids) if len(ids) > 1 else 0 for ids in script.rounds]
    return Script(script.rounds, verified=verified, drafter=drafter)


async def test_every_token_is_told_once_with_its_round() -> None:
    async with FakeWorker(drafters=("ngram", "head")) as worker, running_router(worker) as router:
        worker.script = drafting(TEXT, 1, 4, 1, 3, drafter=1)
        answer = (await ask(router)).choices[0]
        rounds = answer.speculation_rounds
        assert text_of(rounds) == TEXT == answer.message.content
        assert shape_of(rounds)[:4] == [
            (1, 0, 0, None),
            (4, 3, 4, "head"),
            (1, 0, 0, None),
            (3, 2, 3, "head"),
        ]
        assert sum(len(one["tokens"]) for one in rounds) == len(IDS)
        assert await streamed(router) == rounds
        paced = await streamed(router, extra_body={"stream_interval": 7})
        assert paced == rounds


async def test_a_stop_string_cuts_the_round_it_ends_in(stack: Stack) -> None:
    """Anywhere: as many tokens as are counted, none of the rest, drafts no more than tokens."""
    stack.worker.script = drafting(TEXT, 1, 6)
    for start in range(0, len(TEXT) - 3, 4):
        stop = TEXT[start : start + 3]
        answer = await ask(stack.router, stop=[stop])
        rounds = answer.choices[0].speculation_rounds
        counted = answer.usage.completion_tokens
        assert sum(len(one["tokens"]) for one in rounds) == counted
        spelled = b"".join(bytes(t["bytes"]) for one in rounds for t in one["tokens"])
        assert spelled.decode(errors="ignore").find(stop) == TEXT.index(stop)
        assert all(one["accepted"] <= len(one["tokens"]) for one in rounds)
        cut = rounds[-1]
        whole = 1 if len(rounds) == 1 else min(6, len(IDS) - 1 - 6 * (len(rounds) - 2))
        assert cut["accepted"] == min(whole - 1, len(cut["tokens"]))
        assert await streamed(stack.router, stop=[stop]) == rounds


async def test_what_an_answer_is_cut_to_is_what_every_count_says() -> None:
    """A05: report, rounds, usage, log and series come from the rounds as far as they were kept."""
    script = Script([tiny.encode("abcdefghij")] * 2, verified=[9, 9], drafter=0)
    worker = FakeWorker(script=script, drafters=("ngram",))
    async with worker, running_router(worker) as router:
        for options in ({"stop": ["b"]}, {"max_tokens": 2}):
            router.forget()
            with structlog.testing.capture_logs() as lines:
                answer = await ask(router, **options)
            (told,) = [line for line in lines if line["event"] == "request_ended"]
            (one,) = answer.choices[0].speculation_rounds
            report = answer.metrics["speculative_decoding"]
            kept = answer.usage.completion_tokens
            assert kept == len(one["tokens"]) == told["completion_tokens"] == 2
            assert await router.metric("outrider_router_generation_tokens_total") == kept
            accepted = one["accepted"]
            assert report["num_accepted_draft_tokens"] == accepted <= kept
            assert report["per_step_accepted"] == [accepted]
            assert told["accepted_draft_tokens"] == accepted
            assert await router.metric("outrider_router_accepted_draft_tokens_total") == accepted
            assert report["num_spec_steps"] == 1
            assert await router.metric("outrider_router_verify_steps_total") == 1


async def test_choices_are_told_apart() -> None:
    def script(submit: worker_pb2.Submit) -> Script:
        sizes, drafter = ((1, 5), 0) if submit.choice_index else ((3,), 1)
        return drafting(TEXT, *sizes, drafter=drafter)

    worker = FakeWorker(script=script, drafters=("ngram", "suffix"))
    async with worker, running_router(worker) as router:
        answer = await ask(router, n=2)
        first, second = (choice.speculation_rounds for choice in answer.choices)
        assert shape_of(first)[:2] == [(3, 2, 3, "suffix")] * 2
        assert shape_of(second)[:2] == [(1, 0, 0, None), (5, 4, 5, "ngram")]
        assert text_of(first) == text_of(second) == TEXT
        assert await streamed(router, index=0, n=2) == first
        assert await streamed(router, index=1, n=2) == second


async def test_an_answer_that_moves_keeps_what_it_was_told() -> None:
    """The next worker lists its drafters in another order; names are right, no token twice."""
    died: list[bool] = []

    def dying(submit: worker_pb2.Submit) -> Script:
        return _with_drafts(resuming(TEXT, 4, gap_s=0.01, die_after=None if died else 2)(submit))

    def going_on(submit: worker_pb2.Submit) -> Script:
        died.append(True)
        return _with_drafts(resuming(TEXT, 3)(submit))

    first = FakeWorker(script=dying, drafters=("ngram", "head"))
    second = FakeWorker(script=going_on, drafters=("head", "ngram"), ready=False)
    async with first, second, running_router(first, second, resume_wait_s=5) as router:
        stream = await ask(router, stream=True)
        rounds: list[Any] = []
        async for chunk in stream:
            second.ready = True
            rounds += getattr(chunk.choices[0], "speculation_rounds", [])
        assert text_of(rounds) == TEXT
        # What a dying worker said last may be lost with it.
        before = sum(one["drafter"] == "ngram" for one in rounds)
        assert before in (1, 2)
        assert shape_of(rounds[:before]) == [(4, 3, 4, "ngram")] * before
        assert {one["drafter"] for one in rounds[before:-1]} == {"head"}


def _with_drafts(script: Script) -> Script:
    verified = [len(ids) for ids in script.rounds]
    return Script(script.rounds, verified=verified, gap_s=script.gap_s, die_after=script.die_after)


async def test_what_is_not_shown_is_told_too(offering: Stack) -> None:
    """A token without text of its own (part of a character) still comes at once."""
    offering.worker.script = drafting("🎉", 1)
    ids = tiny.encode("🎉")
    assert len(ids) > 1
    rounds = await streamed(offering.router)
    assert [len(one["tokens"]) for one in rounds] == [1] * len(ids)
    assert text_of(rounds) == "🎉"


async def test_nothing_is_told_unasked(stack: Stack) -> None:
    stack.worker.script = drafting(TEXT, 3)
    for headers in ({}, {"x-speculation-report": "detailed"}):
        answer = await ask(stack.router, extra_headers=headers)
        assert not hasattr(answer.choices[0], "speculation_rounds")
        assert await streamed(stack.router, extra_headers=headers) == []
    told = (await ask(stack.router)).metrics["speculative_decoding"]
    assert told["per_step_accepted"], "the level holds all that `detailed` does"


async def test_completions_tell_too(stack: Stack) -> None:
    stack.worker.script = drafting(TEXT, 2)
    create: Any = stack.router.client.completions.create
    answer = await create(model="tiny", prompt="x", extra_headers=ASKED)
    assert text_of(answer.choices[0].speculation_rounds) == TEXT
