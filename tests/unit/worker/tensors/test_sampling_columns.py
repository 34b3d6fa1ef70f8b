"""Lines of the seats' table: taken, taken over, widened; and what a request needs."""

import torch

from outrider_worker.engine.types import SamplingParams
from outrider_worker.sampling import SeatSampling, Stages, stages_of

P = SamplingParams
SEATS = torch.tensor([0, 1, 2])


def test_a_line_holds_what_was_put_and_nobody_elses() -> None:
    table = SeatSampling(2)
    params = P(temperature=0.5, top_k=7, top_p=0.25, min_p=0.125, seed=(1 << 64) - 1)
    table.put(1, params, 3, frozenset())
    drawn = table.draw_columns(SEATS, SEATS)
    assert drawn.temperature.tolist() == [0, 0.5, 0]
    assert drawn.top_k.tolist() == [0, 7, 0]
    assert drawn.top_p.tolist() == [1, 0.25, 1]
    assert drawn.min_p.tolist() == [0, 0.125, 0]
    assert drawn.seed.tolist() == [0, -1, 0]
    assert drawn.choice.tolist() == [0, 3, 0]
    assert table.asks(Stages.FILTER, SEATS).tolist() == [False, True, False]


def test_lists_grow_in_powers_of_two_and_keep_what_they_hold() -> None:
    table = SeatSampling(2)
    first = table.layout
    table.put(0, P(logit_bias=((5, 1.0), (6, -1.0), (5, 0.5))), 0, frozenset())
    two = table.layout
    table.put(1, P(logit_bias=tuple((t, 0.5) for t in range(5))), 0, frozenset())
    ids, values = table.biases(SEATS)
    assert ids.shape == values.shape == (3, 8)
    assert ids[0].tolist() == [5, 6, *[-1] * 6]
    assert values[0].tolist() == [1.5, -1.0, *[0.0] * 6]
    assert first != two != table.layout


def test_bad_words_lie_backwards_and_are_filled_up() -> None:
    table = SeatSampling(2)
    table.put(0, P(bad_words=((1, 2, 3), (4,), (5, 6))), 0, frozenset())
    ends, starts = table.bad_words(SEATS[:1])
    assert ends[0].tolist() == [3, 4, 6, -1]
    assert starts[0].tolist() == [[2, 1], [-1, -1], [5, -1], [-1, -1]]


def test_who_takes_a_seat_inherits_nothing() -> None:
    table = SeatSampling(1)
    asked = P(0.7, bad_words=((1, 2),), logit_bias=((3, 2.0),), min_tokens=4)
    table.put(0, asked, 1, frozenset({7, 8}))
    assert table.end_ids(SEATS[:1]).tolist() == [[7, 8]]
    layout = table.layout
    table.put(0, P(), 0, frozenset({7, 8}))
    assert table.layout == layout
    ends, starts = table.bad_words(SEATS[:1])
    for ids in (table.biases(SEATS[:1])[0], table.end_ids(SEATS[:1]), ends, starts):
        assert (ids == -1).all()
    assert not table.asks(~Stages.NONE, SEATS[:1]).any()


def test_lines_may_be_put_inside_and_outside_of_inference_mode() -> None:
    table = SeatSampling(1)
    with torch.inference_mode():
        table.put(0, P(logit_bias=((1, 1.0), (2, 2.0))), 0, frozenset())
    table.put(0, P(logit_bias=((3, 1.0),)), 0, frozenset())
    assert table.biases(SEATS[:1])[0].tolist() == [[3, -1]]


def test_a_request_needs_the_stages_of_what_it_asks_for() -> None:
    assert stages_of(P()) is Stages.NONE
    assert stages_of(P(top_k=5, top_p=0.5, min_p=0.1)) is Stages.NONE
    assert stages_of(P(0.5)) == Stages.DRAW
    assert stages_of(P(0.5, min_p=0.1)) == Stages.DRAW | Stages.FILTER
    assert stages_of(P(frequency_penalty=-0.1)) == Stages.PENALTIES
    assert stages_of(P(logit_bias=((1, 0.0),))) == Stages.BIAS
    assert stages_of(P(bad_words=((1,),))) == Stages.BAD_WORDS
    assert stages_of(P(min_tokens=1)) == Stages.MIN_TOKENS
    assert stages_of(P(top_logprobs=0)) == Stages.LOGPROBS
