"""A block drafter led through an engine stands as one that was fed the same text at one go."""

import tempfile
from functools import cache
from pathlib import Path

import pytest
import torch

from outrider_worker.model.loader import LoadedModel, load_model
from outrider_worker.speculate.checkpoints import open_drafter
from outrider_worker.speculate.device import StatefulDrafter
from tests.support.block_layouts import DFLASH, DSPARK
from tests.support.drafter_oracle import COURSES, MAX_DRAFT_TOKENS, Course, Subject, check_oracle
from tests.support.tiny_block_drafters import TinyBlock
from tests.support.tiny_models import VOCAB_SIZE, shared_tiny_llama

SUBJECTS = {
    "dflash": DFLASH["z-lab, nested"],
    "dspark": DSPARK["DeepSpec, rnn, calibrated"],
}


@cache
def target() -> LoadedModel:
    return load_model(shared_tiny_llama())


@cache
def folder(name: str) -> Path:
    embedding = target().model.embed(torch.arange(VOCAB_SIZE)).clone()
    tables = {"embed_tokens.weight": embedding, "lm_head.weight": embedding}
    tiny: TinyBlock = SUBJECTS[name]
    return tiny.write(Path(tempfile.mkdtemp(prefix="outrider-block-")), tables)


@pytest.mark.parametrize("course", COURSES.values(), ids=COURSES)
@pytest.mark.parametrize("name", SUBJECTS)
def test_state_is_that_of_a_prefill(name: str, course: Course) -> None:
    def make() -> StatefulDrafter:
        return open_drafter(folder(name), target(), MAX_DRAFT_TOKENS)

    check_oracle(Subject(target(), make, pool=lambda drafter: drafter._pool), course)
