"""Predicted output: an answer beside what the client expected of it."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider_worker.engine.types import NO_DRAFT, Draft, RequestKey, RequestSpec, SamplingParams
from outrider_worker.speculate.drafter import Ask, GivesUp, ReadsRequests
from outrider_worker.speculate.predicted import (
    GIVEN_UP_AFTER_TOKENS,
    NEAR_TOKENS,
    Alignment,
    PredictedDrafter,
)

TEXT = list(range(100, 160))
NEW = [7, 8, 9]
words = st.lists(st.integers(0, 5), max_size=40)


def spec(prediction: Sequence[int], prompt: Sequence[int] = (1, 2, 3)) -> RequestSpec:
    return RequestSpec(
        RequestKey("o", "r"), tuple(prompt), SamplingParams(), prediction_ids=tuple(prediction)
    )


def drafted(prediction: Sequence[int], answer: Sequence[int], asked: int = 4) -> Draft:
    drafter, request = PredictedDrafter(8), spec(prediction)
    drafter.begin(request)
    drafter.prefill(request.key, [*request.prompt_ids, *answer])
    (draft,) = drafter.propose([Ask(request.key, asked)])
    return draft


def rounds_of(prediction: Sequence[int], answer: Sequence[int], asked: int) -> tuple[int, int]:
    """(rounds, drafts refused) of a target that says `answer`."""
    alignment, said, rounds, refused = Alignment(prediction), 0, 0, 0
    while said < len(answer):
        draft, right = alignment.ahead(asked), 0
        while right < len(draft) and draft[right : right + 1] == tuple(answer[said + right :][:1]):
            right += 1
        rounds, refused = rounds + 1, refused + len(draft) - right
        alignment.extend(answer[said : said + right + 1])
        said += right + 1
    return rounds, refused


def test_the_answer_is_drafted_from_its_start_and_bins_grow_with_agreement() -> None:
    assert drafted(TEXT, []) == Draft(tuple(TEXT[:4]), (0,) * 4, 4)
    assert drafted(TEXT, TEXT[:5]) == Draft(tuple(TEXT[5:9]), (5,) * 4, 4)
    assert drafted(TEXT, TEXT[:30]).bins == (15,) * 4
    assert drafted(TEXT, TEXT[:58]).token_ids == tuple(TEXT[58:]), "no more than there is"
    assert drafted(TEXT, TEXT) == Draft(asked_tokens=4)


@pytest.mark.parametrize(
    ("answer", "next_place"),
    [
        ([*TEXT[:20], 7], 21),
        ([*TEXT[:20], *NEW, TEXT[21]], 22),
        ([*TEXT[:20], *NEW, TEXT[20]], 21),
        ([*TEXT[:20], TEXT[25]], 26),
        ([*TEXT[:20], *NEW, *TEXT[50:52]], 52),
        ([*TEXT[:20], *NEW, *TEXT[5:7]], 7),
        ([*NEW, TEXT[0]], 1),
        ([*TEXT, *TEXT[30:32]], 32),
    ],
    ids=["replaced", "by three", "inserted", "left out", "ahead", "back", "preface", "again"],
)
def test_after_an_edit_it_is_found_again(answer: list[int], next_place: int) -> None:
    assert drafted(TEXT, answer).token_ids == tuple(TEXT[next_place : next_place + 4])


@pytest.mark.parametrize(
    "answer",
    [[*TEXT[:20], *NEW], NEW, [*TEXT[:20], *NEW, TEXT[20 + NEAR_TOKENS]], [*TEXT, 7, 8]],
    ids=["twice off", "never on", "one token far away", "beyond the end"],
)
def test_an_answer_that_has_left_the_prediction_is_not_drafted(answer: list[int]) -> None:
    assert drafted(TEXT, answer) == Draft(asked_tokens=4)


def test_of_equal_places_the_next_one_ahead_is_taken() -> None:
    block = [1, 2, 3]
    prediction = [*block, 10, *block, 11, *block, 12, *block, 13]
    answer = [*prediction[:5], *NEW, *block]
    assert drafted(prediction, answer, 1).token_ids == (12,)
    assert drafted(prediction, [*answer, 12, *NEW, 2, 3], 1).token_ids == (13,)


def test_a_wrong_place_is_left_again() -> None:
    """A token of the replacement that also stands a little ahead leads astray for one round."""
    answer = [*TEXT[:20], TEXT[28], TEXT[21]]
    assert drafted(TEXT, answer).token_ids == tuple(TEXT[22:26])


def test_an_edited_text_costs_few_rounds() -> None:
    """Four edits in 60 tokens: two rounds each at most besides those of a perfect prediction."""
    answer = [*TEXT[:10], 7, *TEXT[11:25], *NEW, *TEXT[25:40], *TEXT[43:50], 8, 9, *TEXT[51:]]
    perfect, nothing = rounds_of(TEXT, TEXT, 8)
    rounds, refused = rounds_of(TEXT, answer, 8)
    assert (perfect, nothing) == (7, 0)
    assert rounds <= perfect + 4 * 2
    assert refused < 4 * 8


def test_a_prediction_that_is_of_no_use_costs_little() -> None:
    """Wrong from the start; and one whose first token keeps coming back."""
    assert rounds_of(TEXT, [7] * 50, 8) == (50, 8)
    assert rounds_of(TEXT, [TEXT[0], *[7, 8, TEXT[0]] * 16], 8)[1] <= 5 * 8


def test_an_insertion_is_waited_for_but_not_for_ever() -> None:
    for inserted, given_up in ((GIVEN_UP_AFTER_TOKENS - 1, False), (GIVEN_UP_AFTER_TOKENS, True)):
        alignment = Alignment(TEXT)
        # The first new token is taken for a replacement, the second one tells.
        alignment.extend([*TEXT[:20], 7, *[8] * inserted])
        assert alignment.given_up == given_up
        alignment.extend(TEXT[30:33])
        assert alignment.ahead(2) == (() if given_up else tuple(TEXT[33:35]))


def test_places_that_prove_wrong_do_not_keep_it_going() -> None:
    """Two tokens of agreement again and again, and never a third: soon more is wanted."""
    prediction = [token for n in range(40) for token in (1, 2, 10 + n, 60 + n, 110 + n)]
    alignment = Alignment(prediction)
    alignment.extend([1, 2, 9, 9, 9] * 3)
    assert alignment.ahead(1) == ()
    alignment.extend([1, 2, 9, 9, 9] * 13)
    assert alignment.given_up


def test_a_drafter_says_for_whom_it_can_do_no_more() -> None:
    drafter, left, followed = PredictedDrafter(8), spec(TEXT), spec(TEXT)
    assert isinstance(drafter, GivesUp)
    followed = replace(followed, key=RequestKey("o", "followed"))
    for request, answer in ((left, [7] * 99), (followed, TEXT[:9])):
        drafter.begin(request)
        drafter.prefill(request.key, [*request.prompt_ids, *answer])
    assert [drafter.given_up(each.key) for each in (left, followed)] == [True, False]
    assert not drafter.given_up(RequestKey("o", "nobody"))
    assert drafter.propose([Ask(left.key, 4)]) == [Draft(asked_tokens=4)]


@given(prediction=words, answer=words, cuts=st.lists(st.integers(0, 40), max_size=4))
def test_the_state_is_a_function_of_the_tokens(
    prediction: list[int], answer: list[int], cuts: list[int]
) -> None:
    """In whatever pieces they come: so a request that was set aside goes on as if it had not been.
    Drafts always stand in the prediction, behind as many common tokens as the bin says."""
    whole, pieces = Alignment(prediction), Alignment(prediction)
    whole.extend(answer)
    for start, end in pairwise([0, *sorted(cuts), len(answer) + 40]):
        pieces.extend(answer[start:end])
    assert whole.ahead(9) in ((), tuple(prediction[whole.next_place :][:9]))
    common = min(whole.matched, 15)
    assert (
        prediction[whole.next_place - common : whole.next_place] == answer[len(answer) - common :]
    )
    assert pieces.ahead(9) == whole.ahead(9)


def test_requests_without_a_prediction_get_no_drafts() -> None:
    drafter = PredictedDrafter(8)
    assert isinstance(drafter, ReadsRequests)
    request = spec(())
    drafter.begin(request)
    drafter.prefill(request.key, request.prompt_ids)
    drafter.observe(request.key, [5])
    assert drafter.propose([Ask(request.key, 4)]) == [NO_DRAFT]


def test_a_prompt_in_pieces_is_not_taken_for_the_answer() -> None:
    drafter, request = PredictedDrafter(8), spec(TEXT, TEXT[:6])
    drafter.begin(request)
    drafter.prefill(request.key, TEXT[:4])
    drafter.prefill(request.key, [*TEXT[4:6], TEXT[0]])
    assert drafter.propose([Ask(request.key, 2)]) == [Draft((101, 102), (1, 1), 2)]
