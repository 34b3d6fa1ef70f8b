"""How the rows of one forward are cut into tiles and waves: index arithmetic only.

Knows: runs of rows, tiles, which page each tile must visit, and when copying pages pays.
Does not know: tensors, models, what is computed. Used by `attention.blocks`.

A *run* is the contiguous rows of one sequence. It is cut into tiles of `tile_rows` rows; tile w of
every run belongs to wave w. Runs are ordered by their number of tiles, largest first, so each wave
serves a prefix of the runs, and tiles are numbered wave by wave.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from outrider_worker.kv import PAGE_TOKENS

Ints = NDArray[np.int64]

_COPY_COST = 2
"""Copying a page costs about as much as visiting this many (measured)."""


@dataclass(frozen=True)
class Wave:
    """One batched product: visits [first, end) against as many pages of its source."""

    first_visit: int
    end_visit: int
    first_page: int
    gathered: bool
    """The source is the gathered pages, not the pool itself."""

    @property
    def end_page(self) -> int:
        return self.first_page + self.end_visit - self.first_visit


@dataclass(frozen=True)
class Tiling:
    """N tiles, V visits, B blocks of the longest run, R rows (padding rows included)."""

    tile_rows: int
    rows_of_tile: Ints
    """[N, tile_rows] row of each place; places without a row repeat the tile's first row."""
    place_of_row: Ints
    """[R] tile × tile_rows + place; 0 for padding rows."""
    tile_of_visit: Ints
    """[V]; a visited page that no run owns counts for tile 0, and its result is never read."""
    visible_keys: Ints
    """[V, tile_rows] how many keys of the visited page the row sees."""
    visit_of_block: Ints
    """[B, N] the visit of block b of the tile, or V where the tile has no such block."""
    waves: tuple[Wave, ...]
    gathered_pages: Ints
    """[G] pages to copy, in the order in which gathered waves read them; empty if none do."""


@dataclass(frozen=True)
class _Runs:
    """The runs of one forward, those with most tiles first."""

    first: Ints
    """[runs] index of the first row among the live rows"""
    rows: Ints
    blocks: Ints
    tiles: Ints
    pages: Ints
    """[runs, P]"""

    def blocks_of(self, runs: int) -> tuple[Ints, Ints]:
        """(run, block) of every block of the first `runs` runs, in order."""
        run, block = np.nonzero(np.arange(self.pages.shape[1]) < self.blocks[:runs, None])
        return run, block


def tiling_of(lengths: Ints, sequence: Ints, page_table: Ints, tile_rows: int) -> Tiling | None:
    """Cut the rows of one forward into tiles; None where all rows are padding.

    lengths, sequence: [R]; page_table: [S, P], as in attention.base.Rows.
    """
    live = np.flatnonzero(lengths > 0)
    if not live.size:
        return None
    runs, rank_of_row, index_in_run = _runs(live, lengths, sequence, page_table, tile_rows)
    wave_runs = [int(np.sum(runs.tiles > wave)) for wave in range(int(runs.tiles[0]))]
    first_tile = [0, *accumulate(wave_runs)]

    tile = np.asarray(first_tile)[index_in_run // tile_rows] + rank_of_row
    place = tile * tile_rows + index_in_run % tile_rows
    rows_of_tile = _rows_of_tile(live, place, first_tile[-1], tile_rows)
    place_of_row = np.zeros(len(lengths), dtype=np.int64)
    place_of_row[live] = place

    visits = _Visits(runs, wave_runs, first_tile)
    seen = lengths[rows_of_tile][visits.tile] - PAGE_TOKENS * visits.block[:, None]
    return Tiling(
        tile_rows=tile_rows,
        rows_of_tile=rows_of_tile,
        place_of_row=place_of_row,
        tile_of_visit=visits.tile,
        visible_keys=np.where(visits.owned[:, None], np.clip(seen, 0, PAGE_TOKENS), PAGE_TOKENS),
        visit_of_block=visits.by_block(first_tile[-1]),
        waves=tuple(visits.waves),
        gathered_pages=visits.gathered_pages,
    )


def _runs(
    live: Ints, lengths: Ints, sequence: Ints, page_table: Ints, tile_rows: int
) -> tuple[_Runs, Ints, Ints]:
    """The runs, and for each live row the rank of its run and its index within it."""
    of_row = sequence[live]
    first = np.flatnonzero(np.diff(of_row, prepend=-1))
    rows = np.diff(first, append=len(live))
    tiles = -(-rows // tile_rows)
    order = np.argsort(-tiles, kind="stable")
    last = live[first + rows - 1]
    runs = _Runs(
        first=first[order],
        rows=rows[order],
        blocks=-(-lengths[last] // PAGE_TOKENS)[order],
        tiles=tiles[order],
        pages=page_table[of_row[first[order]]],
    )
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    run_of_row = np.repeat(np.arange(len(first)), rows)
    return runs, rank[run_of_row], np.arange(len(live)) - first[run_of_row]


def _rows_of_tile(live: Ints, place: Ints, tiles: int, tile_rows: int) -> Ints:
    """[N, tile_rows]: see Tiling.rows_of_tile."""
    rows = np.full(tiles * tile_rows, -1, dtype=np.int64)
    rows[place] = live
    table = rows.reshape(tiles, tile_rows)
    return np.where(table < 0, table[:, :1], table)


class _Visits:
    """Which tile visits which page, wave by wave."""

    def __init__(self, runs: _Runs, wave_runs: list[int], first_tile: list[int]) -> None:
        self.waves: list[Wave] = []
        self.gathered_pages = np.empty(0, dtype=np.int64)
        self._parts: list[tuple[Ints, Ints, NDArray[np.bool_]]] = []
        self._count = 0
        self._runs = runs
        first_gathered = _first_gathered_wave(runs, wave_runs)
        for wave, count in enumerate(wave_runs):
            run, block = runs.blocks_of(count)
            pages = runs.pages[run, block]
            if wave < first_gathered:
                self._view(first_tile[wave] + run, block, pages)
            else:
                self._gather(first_tile[wave] + run, block, pages)
        tiles, blocks, owned = zip(*self._parts, strict=True)
        self.tile: Ints = np.concatenate(tiles)
        self.block: Ints = np.concatenate(blocks)
        self.owned: NDArray[np.bool_] = np.concatenate(owned)

    def by_block(self, tiles: int) -> Ints:
        """[B, N]: see Tiling.visit_of_block."""
        table = np.full((int(self._runs.blocks.max()), tiles), self._count, dtype=np.int64)
        visit = np.flatnonzero(self.owned)
        table[self.block[visit], self.tile[visit]] = visit
        return table

    def _view(self, tile: Ints, block: Ints, pages: Ints) -> None:
        """Visit the range of the pool that holds `pages`, in the order of the pool."""
        first = int(pages.min())
        span = int(pages.max()) + 1 - first
        at = pages - first
        tiles, blocks = np.zeros(span, dtype=np.int64), np.zeros(span, dtype=np.int64)
        owned = np.zeros(span, dtype=np.bool_)
        tiles[at], blocks[at], owned[at] = tile, block, True
        self._add(tiles, blocks, owned, first_page=first, gathered=False)

    def _gather(self, tile: Ints, block: Ints, pages: Ints) -> None:
        """Visit copied pages. Later waves serve a prefix of the runs: they need no copy more."""
        if not self.gathered_pages.size:
            self.gathered_pages = pages
        self._add(tile, block, np.ones(len(tile), np.bool_), first_page=0, gathered=True)

    def _add(
        self, tile: Ints, block: Ints, owned: NDArray[np.bool_], first_page: int, gathered: bool
    ) -> None:
        end = self._count + len(tile)
        self.waves.append(Wave(self._count, end, first_page, gathered))
        self._parts.append((tile, block, owned))
        self._count = end


def _first_gathered_wave(runs: _Runs, wave_runs: list[int]) -> int:
    """The wave from which on copying the pages once costs less than visiting whole ranges.

    Pages that two runs share have no place of their own in a range: they must be copied.
    """
    needed, spans = zip(*(_needed_and_span(runs, count) for count in wave_runs), strict=True)
    costs = [
        sum(spans[:wave]) + _COPY_COST * needed[wave] + sum(needed[wave:])
        for wave in range(len(wave_runs))
    ]
    costs.append(sum(spans))
    return costs.index(min(costs))


def _needed_and_span(runs: _Runs, count: int) -> tuple[int, float]:
    """Pages the first `count` runs visit, and the length of the range that holds them."""
    pages = runs.pages[runs.blocks_of(count)]
    shared = count > 1 and len(np.unique(pages)) < len(pages)
    return len(pages), float("inf") if shared else float(pages.max() - pages.min() + 1)
