"""The training loop of one head: steps, checkpoints, and going on from one.

Knows: the optimiser and what a checkpoint holds. Does not know: where data comes from, kinds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from outrider_worker.train.batches import Batch, Columns, drawn
from outrider_worker.train.dataset import Text
from outrider_worker.train.files import whole_file
from outrider_worker.train.heads import TrainedHead
from outrider_worker.train.loss import unrolled_loss
from outrider_worker.train.products import products
from outrider_worker.train.recipe import Recipe
from outrider_worker.train.target import TargetWeights
from outrider_worker.train.vocabulary import kept_mask

_NEW = ("fc.", "hidden_norm.", "enorm.", "hnorm.")
"""Parameters that nothing was copied to."""


class CheckpointError(Exception):
    """A checkpoint of an interrupted run cannot be gone on from."""


@dataclass(frozen=True)
class StepReport:
    """After a step."""

    step: int
    """Steps done, of all runs"""
    loss: float
    rows: int
    """Rows trained on in this step"""
    elapsed_s: float
    """Of this step"""


class Trainer:
    """One head, its optimiser, and how far it is."""

    def __init__(
        self, head: TrainedHead, target: TargetWeights, columns: Columns, recipe: Recipe
    ) -> None:
        self.head, self.steps_done = head, 0
        self.target, self._columns, self._recipe = target, columns, recipe
        self._kept_ids = head.get_buffer("kept_ids")
        self._kept = kept_mask(self._kept_ids, target.config.vocab_size)
        self._optimiser = torch.optim.AdamW(
            _groups(head, recipe), betas=recipe.betas, weight_decay=0.0
        )

    def train(
        self,
        texts: Sequence[Text],
        until: int,
        report: Callable[[StepReport], None] = lambda report: None,
    ) -> None:
        """Go on to step `until`."""
        while self.steps_done < until:
            began_s = time.monotonic()
            loss, rows = self._step(texts)
            self.steps_done += 1
            report(StepReport(self.steps_done, loss, rows, time.monotonic() - began_s))

    def save(self, path: Path) -> None:
        """Everything needed to go on."""
        state = {
            "recipe": asdict(self._recipe),
            "steps_done": self.steps_done,
            "kept_ids": self._kept_ids,
            "head": self.head.state_dict(),
            "optimiser": self._optimiser.state_dict(),
        }
        with whole_file(path) as beside:
            torch.save(state, beside)

    def load(self, path: Path) -> None:
        """Go on from there. Raises CheckpointError for the checkpoint of another run."""
        state = read_checkpoint(path)
        if not _goes_on(self._recipe, state["recipe"], state["steps_done"]):
            raise CheckpointError(
                f"{path} was made with another recipe, or with another number of steps and its "
                "rate has begun to fall: remove it to begin anew"
            )
        if not torch.equal(state["kept_ids"], self._kept_ids.cpu()):
            raise CheckpointError(f"{path} drafts another vocabulary: remove it to begin anew")
        self.head.load_state_dict(state["head"])
        self._optimiser.load_state_dict(state["optimiser"])
        self.steps_done = state["steps_done"]

    def _step(self, texts: Sequence[Text]) -> tuple[float, int]:
        recipe = self._recipe
        batch = drawn(
            texts,
            min(recipe.texts_per_step, len(texts)),
            recipe.rows_per_text,
            self._columns,
            recipe.seed,
            self.steps_done,
        ).to(self._kept_ids.device)
        for group in self._optimiser.param_groups:
            group["lr"] = group["peak"] * recipe.rate(self.steps_done)
        self._optimiser.zero_grad()
        with products(recipe.bfloat16):
            loss = self._loss(batch)
            loss.backward()
        nn.utils.clip_grad_norm_(self.head.parameters(), recipe.clip)
        self._optimiser.step()
        return float(loss.detach()), int(batch.live.sum())

    def _loss(self, batch: Batch) -> Tensor:
        recipe = self._recipe
        logits = self.head.unroll(batch, recipe.unrolled_steps)
        return unrolled_loss(
            logits, batch, self.target, self._kept_ids, self._kept, recipe.step_decay
        )


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Raises CheckpointError for a file that holds none."""
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # what torch raises for a damaged file is no one kind
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    return state


def _goes_on(recipe: Recipe, made_with: dict[str, Any], steps_done: int) -> bool:
    try:
        return recipe.goes_on_from(Recipe(**made_with), steps_done)
    except TypeError:  # fields of another version
        return False


def _groups(head: TrainedHead, recipe: Recipe) -> list[dict[str, Any]]:
    """Parameters by their peak rate."""
    new, copied = list[Tensor](), list[Tensor]()
    for name, parameter in head.named_parameters():
        (new if name.startswith(_NEW) else copied).append(parameter)
    rates = ((new, recipe.new_rate), (copied, recipe.copied_rate))
    return [{"params": group, "peak": rate, "lr": rate} for group, rate in rates]
