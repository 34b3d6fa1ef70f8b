"""A block drafter led through an engine stands as one that was fed the same text at one go."""

from functools import partial

import pytest

from tests.support.block_layouts import DFLASH, DSPARK
from tests.support.drafter_oracle import COURSES, MAX_DRAFT_TOKENS, Course, Subject, check_oracle
from tests.support.engines import tiny_model
from tests.support.neural_drafters import block_drafter

SUBJECTS = {
    "dflash": DFLASH["z-lab, nested"],
    "dspark": DSPARK["DeepSpec, rnn, calibrated"],
}


@pytest.mark.parametrize("course", COURSES.values(), ids=COURSES)
@pytest.mark.parametrize("name", SUBJECTS)
def test_state_is_that_of_a_prefill(name: str, course: Course) -> None:
    make = partial(block_drafter, SUBJECTS[name], MAX_DRAFT_TOKENS)
    check_oracle(Subject(tiny_model(), make, pool=lambda drafter: drafter._pool), course)
