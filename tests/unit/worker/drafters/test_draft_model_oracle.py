"""A separate draft model's state is that of a prefill, whatever it went through."""

from functools import cache

import pytest

from outrider_worker.speculate.draft_model import DraftModel
from tests.support.drafter_oracle import COURSES, MAX_DRAFT_TOKENS, Course, Subject, check_oracle
from tests.support.engines import tiny_model
from tests.support.laws import model_of
from tests.support.tiny_models import VOCAB_SIZE


@cache
def _subject() -> Subject:
    def make() -> DraftModel:
        model = model_of("qwen3").model
        return DraftModel(model, VOCAB_SIZE, VOCAB_SIZE, MAX_DRAFT_TOKENS)

    return Subject(tiny_model(), make, lambda drafter: drafter._pool)


@pytest.mark.parametrize("course", COURSES.values(), ids=COURSES)
def test_state_is_that_of_a_prefill(course: Course) -> None:
    check_oracle(_subject(), course)
