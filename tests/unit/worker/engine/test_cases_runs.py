"""What a run of accepted drafts comes to: the earliest event wins, all behind it never was."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider_worker.engine.commit import Commit, commit_run
from outrider_worker.engine.types import Finish, FinishReason
from tests.support.laws import Way, alone, ask, opened, run

LENGTH = Finish(FinishReason.LENGTH)
STOP = 9


def test_a_stop_before_the_cap_beats_it_and_one_behind_it_is_never_seen() -> None:
    """A01: a run of six; the stop id is hidden, and as the last one allowed it still counts."""
    assert commit_run([1, 2, STOP, 3, 4, 5], 5, 5, frozenset({STOP})) == Commit(
        (1, 2), 2, Finish(FinishReason.STOP_TOKEN, STOP)
    )
    assert commit_run([1, 2, 3, 4, 5, STOP], 5, 5, frozenset({STOP})) == Commit(
        (1, 2, 3, 4, 5), 5, LENGTH
    )
    assert commit_run([1, 2, 3, 4, STOP, 5], 5, 5, frozenset({STOP})) == Commit(
        (1, 2, 3, 4), 4, Finish(FinishReason.STOP_TOKEN, STOP)
    )


@given(
    run=st.lists(st.integers(0, 6), min_size=1, max_size=9),
    stops=st.frozensets(st.integers(0, 6), max_size=2),
    room=st.integers(1, 10),
)
def test_a_run_is_cut_as_if_it_had_come_token_by_token(
    run: list[int], stops: frozenset[int], room: int
) -> None:
    """A03, A05: as many rounds of one token each give the same text, end and count."""
    whole = commit_run(run, len(run) - 1, room, stops)
    kept: list[int] = []
    finish: Finish | None = None
    for token in run:
        step = commit_run([token], 0, room - len(kept), stops)
        kept.extend(step.token_ids)
        finish = step.finish
        if finish is not None:
            break
    assert (list(whole.token_ids), whole.finish) == (kept, finish)
    assert whole.accepted_tokens == min(len(run) - 1, len(kept))


@pytest.mark.parametrize("way", [Way("always", 7), Way("device-scripted", 7, "ahead")])
def test_stops_and_caps_at_every_distance(way: Way) -> None:
    """A01: whichever comes first in the text, wherever the rounds end."""
    text = alone(ask("repetition")).token_ids
    places = [place for place in range(12) if text.index(text[place]) == place]
    pairs = [(stop, cap) for stop in places for cap in range(1, 12, 2)]
    specs = [
        ask("repetition", max_tokens=cap, stop_token_ids=frozenset({text[stop]}))
        for stop, cap in pairs
    ]
    with opened(way, [ask("repetition")]) as bench:
        answers = run(bench, specs)
    assert sum(record.accepted_tokens for record in bench.records) > len(specs)
    for (stop, cap), answer in zip(pairs, answers, strict=True):
        stopped = stop < cap
        assert answer.token_ids == text[: min(stop, cap)]
        assert answer.end == (Finish(FinishReason.STOP_TOKEN, text[stop]) if stopped else LENGTH)
