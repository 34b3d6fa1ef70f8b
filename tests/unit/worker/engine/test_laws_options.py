"""The five laws for every sampling option and every family: a covering part of the full matrix.

Every two of option, drafter, K, device and company meet here; all of them together do in
tests/matrix.
"""

import pytest

from tests.support.law_checks import check_family, check_option
from tests.support.laws import (
    COMPANY,
    DENSE,
    DRAFT_TOKENS,
    DRAFTERS,
    MODES,
    OPTIONS,
    SPARSE,
    Way,
    pairwise,
)
from tests.support.neural_drafters import KINDS


@pytest.mark.parametrize(
    ("option", "drafter", "draft_tokens", "mode", "company"),
    pairwise(list(OPTIONS), DRAFTERS, DRAFT_TOKENS, MODES, COMPANY),
)
def test_every_option_keeps_the_laws(
    option: str, drafter: str, draft_tokens: int, mode: str, company: str
) -> None:
    """A20: what a request asks for is done with speculation as it is without."""
    check_option(Way(drafter, draft_tokens, mode), option, company)


@pytest.mark.parametrize("drafter", KINDS)
@pytest.mark.parametrize(
    ("option", "draft_tokens", "mode"),
    [("everything", 4, "in-step"), ("everything", 3, "ahead"), ("frequency", 1, "ahead")],
)
def test_every_neural_drafter_keeps_the_laws(
    option: str, draft_tokens: int, mode: str, drafter: str
) -> None:
    """Heads that are nearly always wrong and a draft model that is nearly always right."""
    check_option(Way(drafter, draft_tokens, mode), option, "batched")


@pytest.mark.parametrize(
    ("family", "drafter", "draft_tokens", "mode"),
    pairwise([*DENSE, *SPARSE], DRAFTERS, DRAFT_TOKENS, MODES),
)
def test_every_family_keeps_the_laws(
    family: str, drafter: str, draft_tokens: int, mode: str
) -> None:
    check_family(Way(drafter, draft_tokens, mode, family))
