"""Every setting of every service is told in the documentation."""

import re
from pathlib import Path

import pytest

from tests.support.settings_names import SETTINGS, variables

DOCS = Path(__file__).resolve().parents[2] / "docs"
ROWS = [line for file in sorted(DOCS.glob("*.md")) for line in file.read_text().splitlines()]
# Sizes of one request, named there without the router's prefix.
API = (DOCS / "api.md").read_text()
QUOTED = re.compile(r"`([A-Z_]+)\b[^`]*`")


def names_in(row: str) -> set[str]:
    """Variables of a row; `_NAME` continues what the row's first variable begins with."""
    first, *others = QUOTED.findall(row) or [""]
    stem = "_".join(first.split("_")[:2])
    return {first, *others} | {f"{stem}{name}" for name in others if name.startswith("_")}


TOLD = set().union(*map(names_in, ROWS)) | {f"OUTRIDER_ROUTER_{n}" for n in QUOTED.findall(API)}


@pytest.mark.parametrize("service", SETTINGS)
def test_every_setting_is_told(service: str) -> None:
    assert variables(service) - TOLD == set()
