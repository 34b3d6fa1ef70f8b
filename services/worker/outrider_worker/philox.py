"""Philox-4x32-10: random numbers that are a function of where they are used.

Knows: the generator (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"), and that
numbers for different purposes have nothing to do with one another. Does not know: how they are
used. Written in int64 tensor operations, so that every device gives the same bits.
"""

from __future__ import annotations

from enum import IntEnum

import torch
from torch import Tensor

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10


class Purpose(IntEnum):
    """What the noise of a token's place is for: each its own stream."""

    SAMPLE = 0
    """The target's own draw."""
    ACCEPT = 1
    """Whether a draft is accepted there."""
    RESIDUAL = 2
    """The token in the place of a refused draft."""
    DRAFT = 3
    """The drafter's draw, where it does not share the target's noise."""


Words = tuple[Tensor, Tensor, Tensor, Tensor]


def philox(counter: Words, key: tuple[Tensor, Tensor]) -> Words:
    """Four 32-bit words per counter. All are int64 tensors of values below 2³², broadcast."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        # Products wrap at 2⁶⁴, so their halves are exact. The high bits of c1 and c3 may hold
        # anything: they are masked away when c1 and c3 have become part of c0 and c2.
        a, b = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c2 = ((b >> 32) ^ c1 ^ k0) & _MASK, ((a >> 32) ^ c3 ^ k1) & _MASK
        c1, c3 = b, a
        k0, k1 = (k0 + _KEY_STEPS[0]) & _MASK, (k1 + _KEY_STEPS[1]) & _MASK
    return c0, c1 & _MASK, c2, c3 & _MASK


def uniform(
    ids: Tensor, seed: Tensor, choice: Tensor, index: Tensor, purpose: Purpose = Purpose.SAMPLE
) -> Tensor:
    """Noise of tokens `ids` [M, C] for rows' seed, choice, index [M] → [M, C] float64 in (0, 1).

    u = (k + ½) · 2⁻³² from 32 random bits k: never 0, never 1. With the 24 bits of a float32, u = 0
    would turn up about once in a hundred draws from a vocabulary of 150,000, and any token win.
    Four tokens share a counter (token ÷ 4, index, choice, purpose); token mod 4 picks the word.
    """
    words = torch.stack(_words(ids >> 2, seed, choice, index, purpose))
    return _to_unit(words.gather(0, (ids & 3).unsqueeze(0)).squeeze(0))


def uniform_of_all(vocabulary: int, seed: Tensor, choice: Tensor, index: Tensor) -> Tensor:
    """`uniform` of every token id below `vocabulary`: [M] → [M, vocabulary]."""
    blocks = torch.arange(-(-vocabulary // 4), device=seed.device).expand(len(seed), -1)
    words = torch.stack(_words(blocks, seed, choice, index, Purpose.SAMPLE), dim=-1)
    return _to_unit(words.flatten(1)[:, :vocabulary])


def _words(block: Tensor, seed: Tensor, choice: Tensor, index: Tensor, purpose: Purpose) -> Words:
    seed, choice, index = seed[:, None], choice[:, None], index[:, None]
    counter = (block, index & _MASK, choice & _MASK, torch.full_like(index, purpose))
    return philox(counter, (seed & _MASK, (seed >> 32) & _MASK))


def _to_unit(bits: Tensor) -> Tensor:
    return (bits.double() + 0.5) * 2.0**-32
