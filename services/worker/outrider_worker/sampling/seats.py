"""What the running requests ask of sampling, as columns on the device, one line per seat.

A line is uploaded once, when a request takes its seat, and read by every row of that seat in
every round.
"""

from __future__ import annotations

import torch
from torch import Tensor

from outrider_worker.engine.types import SamplingParams
from outrider_worker.sampling.columns import DrawColumns
from outrider_worker.sampling.padded import NO_TOKEN, PaddedLists, uploaded
from outrider_worker.sampling.stages import Stages, stages_of


class SeatSampling:
    """N + 1 lines, the last one for padding rows; a line that nobody has taken is plainly greedy.

    Columns are [N + 1]: temperature, top_p, min_p, repetition, presence, frequency float32;
    top_k, seed, choice, min_tokens int64. Lists, filled up with −1 (bias_values with 0):

    bias_ids, bias_values: [N + 1, B] each id once.
    end_ids: [N + 1, E] what ends the request, if it has to reach some length first.
    word_ends: [N + 1, W] last token of each bad word.
    word_starts: [N + 1, W, T] the tokens before it, the nearest first.
    """

    def __init__(self, seats: int, device: torch.device | str = "cpu") -> None:
        lines, where = seats + 1, torch.device(device)
        neutral = SamplingParams()
        floats = torch.tensor(_floats(neutral), dtype=torch.float32)
        ints = torch.tensor(_ints(neutral, choice_index=0))
        # One column of each block is one upload; a quantity lies in a row, ready to be gathered.
        self._floats = floats[:, None].repeat(1, lines).to(where)
        self._ints = ints[:, None].repeat(1, lines).to(where)
        self.temperature, self.top_p, self.min_p = self._floats[:3]
        self.repetition, self.presence, self.frequency = self._floats[3:]
        self.top_k, self.seed, self.choice, self.min_tokens, self._stages = self._ints
        self._bias_ids = PaddedLists(lines, 1, NO_TOKEN, torch.int64, where)
        self._bias_values = PaddedLists(lines, 1, 0.0, torch.float32, where)
        self._end_ids = PaddedLists(lines, 1, NO_TOKEN, torch.int64, where)
        self._word_ends = PaddedLists(lines, 1, NO_TOKEN, torch.int64, where)
        self._word_starts = PaddedLists(lines, 2, NO_TOKEN, torch.int64, where)

    @property
    def layout(self) -> tuple[int, ...]:
        """Widths of the lists. When they change, tensors have moved: captured graphs are stale."""
        return (
            *self._bias_ids.widths,
            *self._end_ids.widths,
            *self._word_starts.widths,
        )

    def put(
        self, seat: int, params: SamplingParams, choice_index: int, end_ids: frozenset[int]
    ) -> None:
        """Upload the line of the request that takes `seat`. Device work, never inside a round.

        end_ids: all that ends the request, end-of-sequence ids included unless it ignores them.
        """
        where = self._ints.device
        self._floats[:, seat] = uploaded(_floats(params), torch.float32, where)
        self._ints[:, seat] = uploaded(_ints(params, choice_index), torch.int64, where)
        bias = _summed(params.logit_bias)
        self._bias_ids.put(seat, list(bias))
        self._bias_values.put(seat, list(bias.values()))
        self._end_ids.put(seat, sorted(end_ids) if params.min_tokens > 0 else [])
        self._word_ends.put(seat, [word[-1] for word in params.bad_words])
        self._word_starts.put(seat, _starts(params.bad_words))

    def asks(self, stage: Stages, seats: Tensor) -> Tensor:
        """[R] bool: whether the requests in `seats` [R] ask for a stage."""
        asked: Tensor = (self._stages[seats] & stage.value) != 0
        return asked

    def biases(self, seats: Tensor) -> tuple[Tensor, Tensor]:
        """[R, B] ids and values of the requests in `seats` [R]."""
        return self._bias_ids.tensor[seats], self._bias_values.tensor[seats]

    def end_ids(self, seats: Tensor) -> Tensor:
        """[R, E]"""
        return self._end_ids.tensor[seats]

    def bad_words(self, seats: Tensor) -> tuple[Tensor, Tensor]:
        """[R, W] last tokens and [R, W, T] the tokens before them."""
        return self._word_ends.tensor[seats], self._word_starts.tensor[seats]

    def draw_columns(self, seats: Tensor, index: Tensor) -> DrawColumns:
        """What the draw of rows of `seats` [R] with token `index` [R] needs to know."""
        return DrawColumns(
            temperature=self.temperature[seats],
            top_k=self.top_k[seats],
            top_p=self.top_p[seats],
            min_p=self.min_p[seats],
            seed=self.seed[seats],
            choice=self.choice[seats],
            index=index,
        )


def _floats(params: SamplingParams) -> list[float]:
    return [
        params.temperature,
        params.top_p,
        params.min_p,
        params.repetition_penalty,
        params.presence_penalty,
        params.frequency_penalty,
    ]


def _ints(params: SamplingParams, choice_index: int) -> list[int]:
    return [
        params.top_k,
        _signed(params.seed),
        choice_index,
        params.min_tokens,
        stages_of(params).value,
    ]


def _signed(seed: int) -> int:
    """The 64 bits of a seed as int64 holds them."""
    return seed - (1 << 64) if seed >= 1 << 63 else seed


def _summed(biases: tuple[tuple[int, float], ...]) -> dict[int, float]:
    """Each id once, so that no device has to add up in an order of its own."""
    total: dict[int, float] = {}
    for token_id, bias in biases:
        total[token_id] = total.get(token_id, 0.0) + bias
    return total


def _starts(words: tuple[tuple[int, ...], ...]) -> list[list[int]]:
    """Each word without its last token, backwards, filled up to equal lengths."""
    longest = max((len(word) for word in words), default=1) - 1
    return [[*word[-2::-1], *[NO_TOKEN] * (longest + 1 - len(word))] for word in words]
