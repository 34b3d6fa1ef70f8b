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


def _expires_at(heartbeat: Heartbeat, from_s: float) -> float:
    """Judge every half second, as the services do; when the other side counts as gone."""
    now_s = from_s
    while not heartbeat.expired(now_s):
        now_s += 0.5
        assert now_s < 100
    return now_s


def test_any_message_is_a_sign_of_life() -> None:
    silent = Heartbeat(now_s=0.0, deadline_s=5.0)
    assert _expires_at(silent, 0.0) == 5.5
    heard = Heartbeat(now_s=0.0, deadline_s=5.0)
    heard.heard(4.0)
    assert _expires_at(heard, 0.0) == 9.5


def test_a_pause_of_ones_own_is_not_held_against_the_other_side() -> None:
    """Stopped for 30 s, then asked again: what was sent meanwhile is still to be read."""
    heartbeat = Heartbeat(now_s=0.0, deadline_s=5.0)
    assert not heartbeat.expired(0.5)
    assert not heartbeat.expired(30.5)
    assert _expires_at(heartbeat, 31.0) == 35.5


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
