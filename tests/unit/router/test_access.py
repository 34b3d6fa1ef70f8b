"""Keys, their limits, and the line in front of the workers."""

import asyncio
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider_router.access.admission import Admission, ShuttingDown
from outrider_router.access.buckets import Bucket
from outrider_router.access.fair_queue import Claim, Entry, FairQueue
from outrider_router.access.gate import Gate
from outrider_router.access.keys import KeyPolicy, KeyRing, policies_of_file, policy_of_entry
from outrider_router.access.tenant import Overloaded, Tenant, duration
from outrider_router.types import Sampling, Speculation, Submission
from outrider_runtime.clock import VirtualClock
from outrider_runtime.settings import ConfigurationError


def digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def policy(name: str = "a", **limits: Any) -> KeyPolicy:
    return KeyPolicy(name=name, sha256=digest(name), **limits)


def claim(places: int = 1, **options: Any) -> Claim:
    return Claim("a", 4, places, **options)


def test_keys_are_found_by_hash_from_the_environment_and_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    entry = {"name": "team", "sha256": digest("in the file"), "priority": "high"}
    path.write_text(json.dumps({"keys": [entry]}))
    entries = ["in clear", "sha256:" + digest("hashed")]
    plain = [policy_of_entry(text, number) for number, text in enumerate(entries, 1)]
    ring = KeyRing([*plain, *policies_of_file(path)])
    found = [ring.find(key) for key in ("in clear", "hashed", "in the file", "", "x", entries[1])]
    assert [p.name if p else None for p in found] == ["key-1", "key-2", "team", None, None, None]
    assert "in clear" not in repr(ring.policies)


@pytest.mark.parametrize(
    "content",
    [
        *("", "[]", "[" * 200_000, '{"keys": [{"name": "a"}]}'),
        '{"keys": [{"name": "a", "sha256": "secret"}]}',
    ],
)
def test_a_bad_key_file_stops_the_start_and_shows_nothing(tmp_path: Path, content: str) -> None:
    path = tmp_path / "keys.json"
    path.write_text(content)
    with pytest.raises(ConfigurationError, match=r"keys\.json") as caught:
        policies_of_file(path)
    assert "secret" not in str(caught.value)
    with pytest.raises(ConfigurationError, match="64 hex"):
        policy_of_entry("sha256:short", 1)
    with pytest.raises(ConfigurationError, match="the same"):
        KeyRing([policy("a"), policy("a")])


def test_a_bucket_fills_steadily_and_pays_its_debts_first() -> None:
    bucket = Bucket(60)
    assert (bucket.wait_s(60, 100.0), bucket.wait_s(1000, 100.0)) == (0, 0)
    bucket.take(60, 100.0)
    assert bucket.wait_s(1, 100.0) == pytest.approx(1.0)
    bucket.take(30, 100.0)
    assert bucket.remaining(110.0) == 0
    assert bucket.wait_s(1, 110.0) == pytest.approx(21.0)
    assert bucket.reset_s(110.0) == pytest.approx(80.0)
    assert bucket.remaining(10_000.0) == 60
    assert bucket.remaining(9_000.0) == 60, "time that goes back takes nothing"


def test_a_key_is_held_to_its_limits_and_told_of_them() -> None:
    tenant = Tenant(policy(requests_per_minute=3, tokens_per_minute=100, concurrent=3))
    with tenant.request(2, 0.0) as usage:
        usage.charge_prompt(40, 0.0)
        with pytest.raises(Overloaded, match="3 places"), tenant.request(2, 0.0):
            pass
        with tenant.request(1, 0.0) as other, pytest.raises(Overloaded, match="tokens") as full:
            other.charge_prompt(61, 0.0)
        assert full.value.retry_after_s == pytest.approx(0.6)
        usage.charge_answer(30, 0.0)
    assert tenant.choices == 0
    with tenant.request(1, 0.0):
        pass
    with pytest.raises(Overloaded, match="requests") as many, tenant.request(1, 0.0):
        pass
    assert many.value.retry_after_s == pytest.approx(20.0)
    assert tenant.rate_headers(0.0) == {
        "x-ratelimit-limit-requests": "3",
        "x-ratelimit-remaining-requests": "0",
        "x-ratelimit-reset-requests": "1m0s",
        "x-ratelimit-limit-tokens": "100",
        "x-ratelimit-remaining-tokens": "30",
        "x-ratelimit-reset-tokens": "42s",
    }
    assert Tenant(policy()).rate_headers(0.0) == {}
    assert [duration(s) for s in (0.0, 0.012, 1.0, 59.5, 61.2)] == [
        "0ms",
        "12ms",
        "1s",
        "1m0s",
        "1m2s",
    ]


def test_a_key_marks_what_it_sends_and_no_request_talks_it_out_of_that() -> None:
    submission = Submission(
        "r", 0, (1,), 0, Sampling(1, 1, 0, 1), Speculation(max_draft_tokens=9), tenant_salt=b"mine"
    )
    marked = Tenant(
        policy(class_label="batch", cache_salt="s", max_draft_tokens=2, priority="low")
    ).stamp(submission)
    assert (marked.class_label, marked.speculation.max_draft_tokens) == ("batch", 2)
    other = Tenant(policy(cache_salt="t")).stamp(submission)
    assert len({marked.tenant_salt, other.tenant_salt, submission.tenant_salt}) == 3
    assert len(marked.tenant_salt) == 32
    assert Tenant(policy()).stamp(submission) == submission


@given(
    crowd=st.integers(1, 30),
    few=st.integers(1, 5),
    weights=st.sampled_from([(1, 1), (1, 4), (4, 1)]),
)
def test_who_asks_for_little_does_not_wait_behind_who_asks_for_much(
    crowd: int, few: int, weights: tuple[int, int]
) -> None:
    line: FairQueue[str] = FairQueue(1000)
    for _ in range(crowd):
        line.push(Claim("crowd", weights[0], 1), "crowd")
    for _ in range(few):
        line.push(Claim("few", weights[1], 1), "few")
    order = [line.pop() for _ in range(crowd + few)]
    assert (order.count("crowd"), order.count("few"), len(line)) == (crowd, few, 0)
    for position, name in enumerate(order):
        if name == "few":
            ahead = order[:position]
            allowed = (ahead.count("few") + 1) * weights[0] / weights[1] + 1
            assert ahead.count("crowd") <= allowed


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(-3, 3)), max_size=20))
def test_among_a_keys_own_requests_priority_decides(asked: list[tuple[str, int]]) -> None:
    """And not among those of others, who else would be pushed back by mere numbers."""
    line: FairQueue[tuple[str, int, int]] = FairQueue(1000)
    for number, (key, priority) in enumerate(asked):
        line.push(Claim(key, 1, 1, priority), (key, priority, number))
    order = list(line.drain())
    for key in "ab":
        own = [entry for entry in order if entry[0] == key]
        assert own == sorted(own, key=lambda entry: entry[1:])
    served = [key for key, _, _ in order]
    least = min(served.count("a"), served.count("b"))
    assert all(abs(served[:n].count("a") - served[:n].count("b")) <= 1 for n in range(2 * least))


def test_who_gives_up_costs_its_key_nothing() -> None:
    line: FairQueue[str] = FairQueue(1000)
    gone = [line.push(Claim("a", 1, 1), "gone") for _ in range(5)]
    for key in "ab":
        line.push(Claim(key, 1, 1), key)
    for entry in gone:
        line.remove(entry)
    assert list(line.drain()) == ["a", "b"]


def test_a_class_says_more_to_workers_than_any_wish() -> None:
    def sent(of_key: str, wished: int) -> int:
        submission = Submission(
            "r", 0, (1,), 0, Sampling(1, 1, 0, 1), Speculation(), priority=wished
        )
        return Tenant(policy(priority=of_key)).stamp(submission).priority

    ordered = [
        *(sent("high", -(2**31)), sent("high", 5), sent("high", 2**31 - 1)),
        *(sent("normal", -(2**31)), sent("normal", -1), sent("normal", 0), sent("normal", 1)),
        *(sent("low", -(2**31)), sent("low", 0)),
    ]
    assert ordered == sorted(set(ordered))
    assert sent("normal", 7) == 7
    assert all(abs(priority) < 2**31 for priority in ordered)


def gate(*policies: KeyPolicy, needs_key: bool = True) -> Gate:
    return Gate(policies, needs_key, Admission(8, 100), VirtualClock(), 1.0)


def test_keys_may_change_and_what_was_used_stays_used() -> None:
    """A key that goes lets its requests end; one that stays keeps its account."""
    ring = gate(policy("a", requests_per_minute=2, concurrent=5), policy("b"))
    tenant = ring.tenant("a")
    assert tenant is not None
    with tenant.request(1, 0.0):
        assert ring.take_keys([policy("a", requests_per_minute=2, priority="high"), policy("c")])
        assert ring.tenant("a") is tenant
        assert (tenant.weight, tenant.choices) == (16, 1)
        assert tenant.rate_headers(0.0)["x-ratelimit-remaining-requests"] == "1"
        assert [ring.tenant(key) is None for key in "bc"] == [True, False]
    assert not ring.take_keys([policy("a", requests_per_minute=2, priority="high"), policy("c")])
    with pytest.raises(ConfigurationError):
        ring.take_keys([policy("d"), policy("d")])
    assert ring.tenant("a") is tenant, "nothing changes"
    ring.take_keys([])
    assert ring.tenant("a") is None, "no keys let nobody in"
    assert gate(needs_key=False).tenant("") is not None


def test_one_key_cannot_fill_the_line_and_who_leaves_makes_room() -> None:
    line: FairQueue[int] = FairQueue(8)
    entries: list[Entry[int]] = []
    while line.has_room("greedy"):
        entries.append(line.push(Claim("greedy", 1, 1), len(entries)))
    assert len(line) == 4
    assert line.has_room("other")
    line.remove(entries[0])
    line.remove(entries[0])
    assert (len(line), line.pop(), list(line.drain())) == (3, 1, [2, 3])
    assert not FairQueue[int](0).has_room("any")
    whole: FairQueue[int] = FairQueue(3, divided=False)
    while whole.has_room("only"):
        whole.push(Claim("only", 1, 1), 0)
    assert len(whole) == 3


def test_places_and_prompt_tokens_are_given_back_once() -> None:
    admission = Admission(max_choices=3, max_prompt_tokens=10)
    with admission.admit(2) as place:
        place.charge_prompt(8)
        with pytest.raises(Overloaded, match="2 of 3"):
            admission.admit(2)
        with admission.admit(1) as other, pytest.raises(Overloaded, match="prompt tokens"):
            other.charge_prompt(3)
        assert (admission.choices, admission.prompt_tokens) == (2, 8)
    place.release()
    assert (admission.choices, admission.prompt_tokens) == (0, 0)
    with admission.admit(1) as alone:
        alone.charge_prompt(99)
        assert admission.prompt_tokens == 99, "a prompt over the limit is let in alone"


async def test_the_line_moves_in_order_and_large_requests_are_not_overtaken() -> None:
    admission = Admission(3, 100, max_waiting=8)
    first = await admission.wait(claim(3), 5)
    large = asyncio.create_task(admission.wait(claim(3), 5))
    small = asyncio.create_task(admission.wait(claim(), 5))
    await asyncio.sleep(0)
    with pytest.raises(Overloaded, match="places"):
        admission.admit(1)
    assert admission.waiting == 2
    first.release()
    (await large).release()
    (await small).release()
    assert (admission.choices, admission.waiting) == (0, 0)
    with pytest.raises(Overloaded):
        await admission.wait(claim(4), 5)


async def test_who_gives_up_waiting_leaves_no_trace() -> None:
    """F18: also where the turn comes in the very moment of giving up."""
    admission = Admission(1, 100, max_waiting=8)
    held = await admission.wait(claim(), 5)
    with pytest.raises(Overloaded, match="within"):
        await admission.wait(claim(), 0.01)
    tasks = [asyncio.create_task(admission.wait(claim(), 5)) for _ in range(3)]
    await asyncio.sleep(0)
    held.release()
    tasks[0].cancel()
    tasks[1].cancel()
    assert isinstance((await asyncio.gather(*tasks[:2], return_exceptions=True))[0], BaseException)
    (await tasks[2]).release()
    assert (admission.choices, admission.waiting) == (0, 0)
    held = await admission.wait(claim(), 5)
    last = asyncio.create_task(admission.wait(claim(), 5))
    await asyncio.sleep(0)
    admission.send_away()
    with pytest.raises(ShuttingDown):
        await last
    held.release()
    assert (admission.choices, admission.waiting) == (0, 0)
