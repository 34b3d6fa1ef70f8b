"""When to send a sign of life, when the other side is gone, and how long to wait for it."""

from hypothesis import given
from hypothesis import strategies as st

from outrider_runtime.heartbeat import Heartbeat, ReconnectBackoff
from outrider_runtime.rpc import HEARTBEAT_DEADLINE_S, HEARTBEAT_INTERVAL_S, RECONNECT_CAP_S


def test_one_heartbeat_per_interval_with_growing_numbers() -> None:
    heartbeat = Heartbeat(now_s=10.0, interval_s=1.0)
    sent = [heartbeat.due(10.0 + step / 4) for step in range(9)]
    assert [number for number in sent if number] == [1, 2, 3]
    assert [sent[0], sent[4], sent[8]] == [1, 2, 3]


def test_any_message_is_a_sign_of_life() -> None:
    heartbeat = Heartbeat(now_s=0.0, deadline_s=5.0)
    assert not heartbeat.expired(5.0)
    assert heartbeat.expired(5.1)
    heartbeat.heard(4.0)
    assert not heartbeat.expired(9.0)
    assert heartbeat.expired(9.1)


def test_news_that_arrives_out_of_order_does_not_take_life_away() -> None:
    heartbeat = Heartbeat(now_s=0.0, deadline_s=5.0)
    heartbeat.heard(4.0)
    heartbeat.heard(1.0)
    assert not heartbeat.expired(8.5)


def test_several_heartbeats_may_be_lost_before_the_deadline() -> None:
    assert HEARTBEAT_DEADLINE_S >= 3 * HEARTBEAT_INTERVAL_S


@given(st.integers(1, 200))
def test_waits_stay_below_the_cap_however_long_the_peer_is_away(attempts: int) -> None:
    backoff = ReconnectBackoff()
    waits = [backoff.next_wait_s() for _ in range(attempts)]
    assert all(0 < wait_s <= RECONNECT_CAP_S for wait_s in waits)


def test_waits_grow_and_start_over_after_success() -> None:
    backoff = ReconnectBackoff(first_s=0.1, cap_s=60.0)
    first, *_, last = (backoff.next_wait_s() for _ in range(8))
    assert first <= 0.1
    assert last >= 0.1 * 2**7 / 2
    backoff.reset()
    assert backoff.next_wait_s() <= 0.1
