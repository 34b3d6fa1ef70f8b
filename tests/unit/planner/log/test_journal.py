"""From the recorder to a file: bounded, in order, and nothing that breaks the planner."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from outrider_planner.log import journal as journal_module
from outrider_planner.log.entries import Entry, decode
from outrider_planner.log.file import FileSink, read_lines
from outrider_planner.log.journal import LogJournal
from outrider_planner.log.stream import StreamSink, read_stream
from outrider_planner.store.base import LogLimits, Page
from outrider_planner.store.errands import LogErrands
from outrider_planner.store.memory import MemoryStore
from tests.unit.planner.builders import make_report, make_rounds


class Broken:
    """A sink that fails until it is mended."""

    def __init__(self) -> None:
        self.mended = False
        self.dropped = 0
        self.lines: list[str] = []

    async def write(self, lines: Sequence[str]) -> bool:
        if not self.mended:
            raise OSError("no space left")
        self.lines += lines
        return False

    def lost(self) -> int:
        return self.dropped

    async def close(self) -> None:
        pass


def tick(number: int) -> Entry:
    return Entry("tick", float(number), {})


@asynccontextmanager
async def writing(sink: FileSink | Broken | StreamSink) -> AsyncIterator[LogJournal]:
    journal = LogJournal(sink, "planner-a")
    journal.start()
    yield journal
    await journal.stop()


async def test_entries_reach_the_file_in_order(tmp_path: Path) -> None:
    path = tmp_path / "new" / "decisions.jsonl"
    async with writing(FileSink(path)) as journal:
        for number in range(1000):
            journal.put(tick(number))
    times = [decode(line)["t"] for line in read_lines(path)]
    assert times == list(range(1000))
    assert (journal.written, journal.lost) == (1000, 0)
    assert path.stat().st_mode & 0o077 == 0


async def test_files_rotate_and_ask_for_a_new_beginning(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    sink = FileSink(path, most_bytes=200, old=2)
    asked = [await sink.write([f"line {number} " + "x" * 100]) for number in range(8)]
    assert asked == [False, True] * 4
    assert not path.exists()
    await sink.write(["last"])
    numbers = [line.split()[1] for line in list(read_lines(path))[:-1]]
    assert numbers == ["4", "5", "6", "7"]
    assert not path.with_name("decisions.jsonl.3").exists()


async def test_half_a_line_of_a_killed_process_spoils_no_other(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    path.write_text('{"half')
    await FileSink(path).write(["whole"])
    assert list(read_lines(path)) == ['{"half\n', "whole\n"]


async def test_a_file_that_cannot_be_written_is_counted_and_marked() -> None:
    sink = Broken()
    journal = LogJournal(sink, "planner-a")
    journal.put(tick(1))
    journal.put(tick(2))
    await journal.stop()
    assert (journal.written, journal.lost) == (0, 2)
    sink.mended = True
    journal.put(tick(3))
    await journal.stop()
    gap, third = (decode(line) for line in sink.lines)
    assert (gap["k"], gap["lost"]) == ("gap", 2)
    assert third["t"] == 3.0


async def test_what_waits_is_bounded_by_its_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "MOST_WAITING_ROUNDS", 100)
    sink = Broken()
    sink.mended = True
    journal = LogJournal(sink, "planner-a")
    for sequence in range(5):
        report = make_report(sequence + 1, make_rounds(40))
        journal.put(Entry("report", float(sequence), {"report": report}))
    await journal.stop()
    assert (journal.written, journal.lost) == (2, 3)
    journal.put(tick(9))
    await journal.stop()
    assert [decode(line)["k"] for line in sink.lines] == ["report", "report", "gap", "tick"]


async def test_a_beginning_is_wanted_once_at_first() -> None:
    journal = LogJournal(Broken(), "planner-a")
    assert [journal.wants_head(), journal.wants_head()] == [True, False]


async def test_the_stream_is_read_back_in_pages() -> None:
    store, waiting = MemoryStore(lambda: 0.0), list[tuple[str, str]]()
    sink = StreamSink(lambda name, line, _: waiting.append((name, line)), lambda: 0)
    due = [await sink.write(["x"] * 2_500) for _ in range(3)]
    assert due == [False, True, False], "a quarter of the entries that are kept"
    lines = [f"line {number}" for number in range(600)]
    (name, _) = waiting[0]
    await store.append(name, Page("a", 1, lines), 1000)
    assert [line async for line in read_stream(store)] == lines


async def test_large_entries_make_the_stream_shorter_and_its_beginnings_more_frequent() -> None:
    limits = LogLimits(most_entries=1000, most_bytes=40_000)
    sink = StreamSink(lambda *_: None, lambda: 0, limits)
    assert [await sink.write(["x" * 400] * 20) for _ in range(3)] == [False, True, False]
    store = MemoryStore(lambda: 0.0)
    errands = LogErrands(store, "a", lambda _outcome: None)
    for size, kept in ((20, 1000), (4000, 10)):
        for _ in range(6000):
            errands.put("decisions", "x" * size, limits)
            if errands.names() == ["decisions"]:
                await errands.run("decisions")
        found = await store.entries("decisions", "", 5000)
        assert len(found) == kept
        assert sum(len(text) for _, text in found) <= limits.most_bytes


async def test_stopping_writes_what_waits(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    journal = LogJournal(FileSink(path), "planner-a")
    journal.start()
    await asyncio.sleep(0)
    journal.put(tick(1))
    await journal.stop()
    assert len(list(read_lines(path))) == 1


async def test_what_a_sink_gives_up_later_is_marked_as_well() -> None:
    sink = Broken()
    sink.mended, sink.dropped = True, 4
    journal = LogJournal(sink, "planner-a")
    for number in range(2):
        journal.put(tick(number))
        await journal.stop()
    gap = decode(sink.lines[1])
    assert (gap["k"], gap["lost"], journal.lost) == ("gap", 4, 4)
