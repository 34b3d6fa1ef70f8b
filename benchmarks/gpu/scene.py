"""Some texts in a pool of their own on one device, run forward by hand: no engine, no sampling."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outrider_worker.graphs import EagerForwards, Forwards
from outrider_worker.kv import PAGE_TOKENS, KvPool
from outrider_worker.model.base import CausalLM
from outrider_worker.rows import RowLayout, lay_out
from outrider_worker.seats import SeatState


class Scene:
    """Seat s holds text s; pages lie scattered over the pool."""

    def __init__(
        self,
        model: CausalLM,
        device: torch.device,
        dtype: torch.dtype,
        texts: Sequence[Sequence[int]],
        context_tokens: int,
    ) -> None:
        self.model = model
        self.forwards: Forwards = EagerForwards(model)
        self.state = SeatState.allocate(len(texts), context_tokens, 0, device)
        each = self.state.page_table.shape[1]
        self.pool = KvPool.of_pages(model.config, 1 + len(texts) * each, dtype, device)
        generator = torch.Generator().manual_seed(0)
        pages = 1 + torch.randperm(len(texts) * each, generator=generator)
        self.state.page_table[:-1] = pages.view(len(texts), each).to(device)
        self._device = device
        self.seats = self._ints(range(len(texts)))
        for seat, text in enumerate(texts):
            self.state.put(seat, self._ints(text), len(text), context_tokens - len(text))

    @classmethod
    def random(
        cls, model: CausalLM, device: torch.device, dtype: torch.dtype, seats: int, tokens: int
    ) -> Scene:
        """Texts of random tokens, with a page of room behind them; K/V as if computed."""
        generator = torch.Generator().manual_seed(1)
        texts = torch.randint(model.config.vocab_size, (seats, tokens), generator=generator)
        scene = cls(model, device, dtype, texts.tolist(), tokens + PAGE_TOKENS)
        for tensor in (*scene.pool.keys, *scene.pool.values):
            tensor.normal_(generator=torch.Generator(device).manual_seed(2))
        return scene

    @torch.inference_mode()
    def prefill(self) -> Tensor:
        """[texts, V] logits behind every text."""
        known = self.state.known[:-1]
        layout = self.rows(torch.zeros_like(known), known, int(known.sum()))
        return self._logits(layout, layout.last_rows(known))

    @torch.inference_mode()
    def all_logits(self) -> Tensor:
        """[tokens of all texts, V] logits at every position."""
        known = self.state.known[:-1]
        layout = self.rows(torch.zeros_like(known), known, int(known.sum()))
        return self._logits(layout, slice(None))

    @torch.inference_mode()
    def greedy(self, tokens: int) -> list[list[int]]:
        """`tokens` greedy tokens of every text, all texts in one forward each time."""
        logits, out, one_each = self.prefill(), [], torch.ones_like(self.seats)
        for _ in range(tokens):
            chosen = logits.argmax(-1, keepdim=True)
            out.append(chosen)
            self.state.advance(self.seats, chosen, torch.zeros_like(self.seats))
            anchors = self.rows(self.state.known[:-1] - 1, one_each, len(self.seats))
            logits = self._logits(anchors, slice(None))
        return torch.cat(out, 1).tolist()

    def rows(self, first: Tensor, counts: Tensor, rows: int) -> RowLayout:
        """`counts` rows of as many texts from the positions `first` on; see rows.lay_out."""
        return lay_out(self.state, self.seats[: len(first)], first, counts, rows)

    def _logits(self, layout: RowLayout, chosen: Tensor | slice) -> Tensor:
        hidden, _ = self.forwards(layout.rows, self.pool)
        return self.model.logits(hidden[chosen])

    def _ints(self, values: Sequence[int]) -> Tensor:
        return torch.tensor(list(values), dtype=torch.int64, device=self._device)
