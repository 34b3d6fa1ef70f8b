"""Relaxed acceptance: while a model thinks aloud, a draft also holds where it is nearly as good as
the target's best (TensorRT-LLM, "Boosting DeepSeek-R1 performance with multi-token prediction").

It changes the text, and says so: what was accepted this way is counted apart, a deployment has to
allow it, a request may opt out, and one that wants logprobs or a reproducible text never gets it
(`Stages.RELAXED` is not among its stages). Everything behind the end of thinking is strict.

Knows: the rule and where thinking ends. Does not know: why a request is or is not permitted.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from outrider_worker.sampling import RowSampling, Stages
from outrider_worker.speculate.verify import Coupled, JudgedRows, Verdict, leading


@dataclass(frozen=True, slots=True)
class RelaxedRule:
    """A draft holds if it is among the `top` likeliest tokens and at most `delta` less probable
    than the best one, and could have been drawn at all.

    open_id, close_id: the tokens that begin and end thinking.
    """

    open_id: int
    close_id: int
    top: int = 10
    delta: float = 0.6

    def __post_init__(self) -> None:
        if self.top < 1 or not 0 <= self.delta <= 1:
            raise ValueError(
                "relaxed acceptance needs top ≥ 1 and delta in 0…1, "
                f"these are {self.top} and {self.delta}"
            )
        if self.open_id == self.close_id:
            raise ValueError("one token cannot both begin and end thinking")


class RelaxedVerifier(Coupled):
    """Sampler match that gives way while a permitted request thinks (a Verifier, lossy)."""

    name = "relaxed"

    def __init__(self, rule: RelaxedRule) -> None:
        self._rule = rule

    def verify(self, rows: JudgedRows) -> Verdict:
        """See Verifier.verify; accepted drafts are emitted as they are."""
        samples = rows.samples()
        agreed = samples[:, :-1] == rows.drafts
        if Stages.RELAXED not in rows.sampling.asked or not agreed.shape[1]:
            return Verdict(leading(agreed, rows), samples, torch.zeros_like(rows.lengths))
        accepted = leading(agreed | self._near(rows), rows)
        held = rows.places < accepted[:, None]
        emitted = samples.clone()
        emitted[:, :-1] = torch.where(held, rows.drafts, samples[:, :-1])
        return Verdict(accepted, emitted, relaxed=(held & ~agreed).sum(dim=1))

    def _near(self, rows: JudgedRows) -> Tensor:
        """[n, K] drafts that hold by relaxation."""
        permitted = rows.sampling.table.asks(Stages.RELAXED, rows.seats)
        return rows.of_drafts(self._good_enough) & self._thinking(rows) & permitted[:, None]

    def _good_enough(self, sampling: RowSampling, logits: Tensor, drafts: Tensor) -> Tensor:
        """[M] bool of rows [M] and their drafts: by law, of greedy rows by what they believe."""
        adjusted = sampling.adjust(logits)
        beliefs = sampling.beliefs(adjusted).double()
        law = torch.where(sampling.draws[:, None], sampling.law_adjusted(adjusted), beliefs)
        own = law.gather(1, drafts[:, None])
        better = (law > own).sum(-1)
        near = own >= law.amax(-1, keepdim=True) - self._rule.delta
        return (better < self._rule.top) & (near & (own > 0)).squeeze(1)

    def _thinking(self, rows: JudgedRows) -> Tensor:
        """[n, K] bool: whether each draft is judged by a row that thinks.

        Found anew in every round, from the first token of the prompt on (a template may open the
        thinking there): so it survives preemption and migration, and no state can go stale.
        """
        text = rows.sampling.rows.history[rows.seats]
        column = torch.arange(text.shape[1], device=text.device)
        text = text.masked_fill(column >= rows.known[:, None], -1)
        begun, ended = (self._last(text == each, column) for each in self._boundary_ids)
        # Draft j is judged behind the drafts before it, which may open or close.
        before = rows.drafts.roll(1, dims=1).masked_fill(rows.places == 0, -1)
        places = text.shape[1] + rows.places
        opened, closed = (
            torch.where(before == each, places, 0).cummax(dim=1).values
            for each in self._boundary_ids
        )
        return torch.maximum(opened, begun) > torch.maximum(closed, ended)

    @property
    def _boundary_ids(self) -> tuple[int, int]:
        return self._rule.open_id, self._rule.close_id

    @staticmethod
    def _last(found: Tensor, column: Tensor) -> Tensor:
        """found [n, L] → [n, 1] the last column where it holds, counted from 1; 0 for none."""
        return torch.where(found, column + 1, 0).amax(dim=1, keepdim=True)
