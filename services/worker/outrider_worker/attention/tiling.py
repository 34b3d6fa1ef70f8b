"""How the rows of one forward are cut into tiles and waves: index arithmetic only.

Knows: runs of rows, tiles, which page each tile must visit, and when copying pages pays.
Does not know: tensors, models, what is computed. Used by `attention.blocks`.

A *run* is the contiguous rows of one sequence. It is cut into tiles of `tile_rows` rows; tile w of
every run belongs to wave w. Runs are ordered by their number of tiles, largest first, so each wave
serves a prefix of the runs. Tiles are numbered by the number of blocks they visit, largest first,
so that those with a b-th block are a prefix of the tiles.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
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
    """N tiles, V visits, B blocks of the tile with most, R rows (padding rows included)."""

    tile_rows: int
    rows_of_tile: Ints
    """[N, tile_rows] row of each place; places without a row repeat the tile's first row."""
    place_of_row: Ints
    """[R] tile × tile_rows + place; 0 for padding rows."""
    tile_of_visit: Ints
    """[V]; a visited page that no run owns counts for tile 0, and its result is never read."""
    visible_end: Ints
    """[V, tile_rows] where the keys of the visited page that the row sees end."""
    visible_start: Ints | None
    """[V, tile_rows] where they begin; None where all begin at the page's first key."""
    visits_by_block: Ints
    """[visits of owned pages] every tile's first block, then every tile's second, …"""
    tiles_by_block: tuple[int, ...]
    """[B] how many tiles have a b-th block."""
    waves: tuple[Wave, ...]
    gathered_pages: Ints
    """[G] pages to copy, in the order in which gathered waves read them; empty if none do."""


@dataclass(frozen=True)
class _Runs:
    """The runs of one forward, those with most tiles first."""

    tiles: Ints
    """[runs]"""
    first_block: Ints
    """The block of the first key that a row of the run sees."""
    blocks: Ints
    """How many blocks the run sees, from its first one on."""
    pages: Ints
    """[runs, blocks up to the end of the longest run]"""

    def visits_of(self, runs: int) -> _RunVisits:
        """Every block of the first `runs` runs, in order."""
        counts = self.blocks[:runs]
        run = np.repeat(np.arange(runs), counts)
        skipped = self.first_block[:runs] - (np.cumsum(counts) - counts)
        block = np.arange(len(run)) + skipped[run]
        return _RunVisits(run, block, self.pages[run, block])


@dataclass(frozen=True)
class _RunVisits:
    """The blocks that a prefix of the runs sees, each with its page; all of one length."""

    run: Ints
    block: Ints
    pages: Ints

    @cached_property
    def first_page(self) -> int:
        return int(self.pages.min())

    @cached_property
    def span(self) -> int:
        """Length of the range of the pool that holds the pages."""
        return int(self.pages.max()) + 1 - self.first_page

    @cached_property
    def viewing_cost(self) -> float:
        """Of visiting that whole range. Pages that two runs share have no place of their own in
        it: they must be copied.
        """
        shared = self.run[-1] > 0 and len(np.unique(self.pages)) < len(self.pages)
        return float("inf") if shared else self.span


def tiling_of(
    lengths: Ints,
    sequence: Ints,
    page_table: Ints,
    tile_rows: int,
    window: int | None = None,
) -> Tiling | None:
    """Cut the rows of one forward into tiles; None where all rows are padding.

    lengths, sequence: [R]; page_table: [S, P], as in attention.base.Rows; window as in its plan.
    """
    live = np.flatnonzero(lengths > 0)
    if not live.size:
        return None
    runs, rank_of_row, index_in_run = _runs(live, lengths, sequence, page_table, tile_rows, window)
    waves = np.arange(runs.tiles[0])
    wave_runs: list[int] = (runs.tiles > waves[:, None]).sum(1).tolist()
    first_tile = [0, *accumulate(wave_runs)]

    visits = _Visits(runs, wave_runs, first_tile)
    number = visits.tile_numbers()
    tile = number[np.asarray(first_tile)[index_in_run // tile_rows] + rank_of_row]
    place = tile * tile_rows + index_in_run % tile_rows
    rows_of_tile = _rows_of_tile(live, place, first_tile[-1], tile_rows)
    place_of_row = np.zeros(len(lengths), dtype=np.int64)
    place_of_row[live] = place

    tile_of_visit = number[visits.tile]
    seen = lengths[rows_of_tile][tile_of_visit] - PAGE_TOKENS * visits.block[:, None]
    starts = None if window is None else np.clip(seen - window, 0, PAGE_TOKENS)
    visits_by_block, tiles_by_block = visits.by_block(number)
    return Tiling(
        tile_rows=tile_rows,
        rows_of_tile=rows_of_tile,
        place_of_row=place_of_row,
        tile_of_visit=tile_of_visit,
        visible_end=np.clip(seen, 0, PAGE_TOKENS),
        visible_start=starts,
        visits_by_block=visits_by_block,
        tiles_by_block=tiles_by_block,
        waves=tuple(visits.waves),
        gathered_pages=visits.gathered_pages,
    )


def _runs(
    live: Ints,
    lengths: Ints,
    sequence: Ints,
    page_table: Ints,
    tile_rows: int,
    window: int | None,
) -> tuple[_Runs, Ints, Ints]:
    """The runs, and for each live row the rank of its run and its index within it."""
    of_row = sequence[live]
    edges = np.flatnonzero(of_row[1:] != of_row[:-1]) + 1
    first, end = np.concatenate(([0], edges)), np.concatenate((edges, [len(live)]))
    rows = end - first
    tiles = -(-rows // tile_rows)
    order = np.argsort(-tiles, kind="stable")
    end_block = -(-lengths[live[end - 1]] // PAGE_TOKENS)
    unseen = 0 if window is None else np.maximum(lengths[live[first]] - window, 0)
    first_block = np.zeros_like(end_block) + unseen // PAGE_TOKENS
    runs = _Runs(
        tiles=tiles[order],
        first_block=first_block[order],
        blocks=(end_block - first_block)[order],
        pages=page_table[of_row[first[order]], : end_block.max()],
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
    """Which tile visits which page, wave by wave; so are the tiles numbered here."""

    def __init__(self, runs: _Runs, wave_runs: list[int], first_tile: list[int]) -> None:
        self.waves: list[Wave] = []
        self.gathered_pages = np.empty(0, dtype=np.int64)
        self._parts: list[tuple[Ints, Ints, Ints]] = []
        self._count = 0
        self._first_block = np.concatenate([runs.first_block[:count] for count in wave_runs])
        self._blocks = np.concatenate([runs.blocks[:count] for count in wave_runs])
        visits_of = {count: runs.visits_of(count) for count in set(wave_runs)}
        visits = [visits_of[count] for count in wave_runs]
        first_gathered = _first_gathered_wave(visits)
        for wave, (tile, visit) in enumerate(zip(first_tile, visits, strict=False)):
            if wave < first_gathered:
                self._view(tile + visit.run, visit)
            else:
                self._gather(tile + visit.run, visit)
        tiles, blocks, owned = zip(*self._parts, strict=True)
        self.tile: Ints = np.concatenate(tiles)
        self.block: Ints = np.concatenate(blocks)
        self._owned: Ints = np.concatenate(owned)

    def tile_numbers(self) -> Ints:
        """[N] the final number of each tile: see the module's docstring."""
        number = np.empty(len(self._blocks), dtype=np.int64)
        number[np.argsort(-self._blocks, kind="stable")] = np.arange(len(number))
        return number

    def by_block(self, number: Ints) -> tuple[Ints, tuple[int, ...]]:
        """See Tiling.visits_by_block, tiles_by_block."""
        visit = np.flatnonzero(self._owned)
        tile = self.tile[visit]
        block = self.block[visit] - self._first_block[tile]
        order = np.argsort(block * len(number) + number[tile])
        return visit[order], tuple(np.bincount(block).tolist())

    def _view(self, tile: Ints, visits: _RunVisits) -> None:
        """Visit the range of the pool that holds the pages, in the order of the pool."""
        at = visits.pages - visits.first_page
        tiles, blocks, owned = np.zeros((3, visits.span), dtype=np.int64)
        tiles[at], blocks[at], owned[at] = tile, visits.block, 1
        self._add(tiles, blocks, owned, first_page=visits.first_page, gathered=False)

    def _gather(self, tile: Ints, visits: _RunVisits) -> None:
        """Visit copied pages. Later waves serve a prefix of the runs: they need no copy more."""
        if not self.gathered_pages.size:
            self.gathered_pages = visits.pages
        self._add(tile, visits.block, np.ones_like(tile), first_page=0, gathered=True)

    def _add(self, tile: Ints, block: Ints, owned: Ints, first_page: int, gathered: bool) -> None:
        end = self._count + len(tile)
        self.waves.append(Wave(self._count, end, first_page, gathered))
        self._parts.append((tile, block, owned))
        self._count = end


def _first_gathered_wave(visits: list[_RunVisits]) -> int:
    """The wave from which on copying the pages once costs less than visiting whole ranges."""
    viewing = np.array([visit.viewing_cost for visit in visits])
    copied = np.array([len(visit.pages) for visit in visits])
    costs = np.zeros(len(visits) + 1)
    costs[1:] += np.cumsum(viewing)
    costs[:-1] += np.cumsum(copied[::-1])[::-1] + _COPY_COST * copied
    return int(np.argmin(costs))
