"""The five laws, all axes against all: `make test-matrix`.

The covering part of it that runs with every `make test` is in test_laws_options.py.
"""

import itertools

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
)

pytestmark = pytest.mark.matrix


@pytest.mark.parametrize(
    ("option", "drafter", "draft_tokens", "mode", "company"),
    list(itertools.product(OPTIONS, DRAFTERS, DRAFT_TOKENS, MODES, COMPANY)),
)
def test_options(option: str, drafter: str, draft_tokens: int, mode: str, company: str) -> None:
    check_option(Way(drafter, draft_tokens, mode), option, company)


@pytest.mark.parametrize(
    ("family", "drafter", "draft_tokens", "mode"),
    list(itertools.product([*DENSE, *SPARSE], DRAFTERS, DRAFT_TOKENS, MODES)),
)
def test_families(family: str, drafter: str, draft_tokens: int, mode: str) -> None:
    check_family(Way(drafter, draft_tokens, mode, family))
