"""What the draw of each row needs to know, as columns.

Knows: the request's options at the end of the chain, from temperature on, and where a row's noise
lies. Does not know: what came before in the chain.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class DrawColumns:
    """How each of R rows draws its token."""

    temperature: Tensor
    """[R] float32; 0 is greedy."""
    top_k: Tensor
    """[R] int64; 0 is off."""
    top_p: Tensor
    """[R] float32; 1 is off."""
    min_p: Tensor
    """[R] float32, of the highest probability; 0 is off."""
    seed: Tensor
    """[R] int64"""
    choice: Tensor
    """[R] int64, which of a request's parallel answers this is."""
    index: Tensor
    """[R] int64, the token's index counted from the end of the original prompt."""

    def take(self, rows: Tensor | slice) -> DrawColumns:
        """The columns of `rows` [M] int64."""
        return DrawColumns(
            temperature=self.temperature[rows],
            top_k=self.top_k[rows],
            top_p=self.top_p[rows],
            min_p=self.min_p[rows],
            seed=self.seed[rows],
            choice=self.choice[rows],
            index=self.index[rows],
        )

    @property
    def draws(self) -> Tensor:
        """[R] bool"""
        return self.temperature > 0

    @property
    def filters(self) -> Tensor:
        """[R] bool"""
        return (self.top_k > 0) | (self.top_p < 1) | (self.min_p > 0)

    def scaled(self, logits: Tensor) -> Tensor:
        """[R, V] → [R, V] float64 at each row's temperature; greedy rows keep their logits."""
        temperature = torch.where(self.draws, self.temperature, 1.0)
        return logits.double() / temperature[:, None].double()
