"""`outrider replay`: plays a decision log again, offline, and compares policies on it.

Knows where logs are kept and how the comparison is printed. Imports the planner's packages only
when it runs.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outrider_cli.errors import CommandError
from outrider_cli.launch import missing_package

if TYPE_CHECKING:
    from outrider_planner.log.compare import Line

_COLUMNS = ("from s", "to s", "policy", "n", "d", "rows", "tokens/s", "vs off", "vs logged")
_REDIS_SCHEMES = ("redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel")


def replay(
    log: str, policies: Sequence[str], writer: str | None, worker: str | None, spans: int
) -> dict[str, Any]:
    """What the log says when played again: agreement, a line per policy, and lines over time.

    Raises:
        CommandError: no such log, an entry that cannot be read, or an unknown policy.
    """
    try:
        from outrider_planner.core.policies import UnknownPolicyError, parse
        from outrider_planner.log.compare import over_time, summary
        from outrider_planner.log.entries import LogError
        from outrider_planner.log.replay import Replay
        from outrider_planner.plugins import installed_policies
    except ModuleNotFoundError as error:
        raise missing_package(error, "planner") from error
    try:
        entries, unreadable = _entries(log, writer)
        played = Replay(policies, lambda name: parse(name, installed_policies()))
        samples = [item for item in played.play(entries) if worker in (None, item.worker)]
    except (LogError, UnknownPolicyError) as error:
        raise CommandError(str(error)) from error
    played.agreement.lost += unreadable
    return {
        "writer": entries[0]["w"] if entries else None,
        "entries": len(entries),
        "agreement": asdict(played.agreement),
        "summary": summary(samples),
        "over_time": over_time(samples, spans),
    }


def values(found: Mapping[str, Any]) -> dict[str, Any]:
    """The result as JSON takes it."""
    lines = {key: [asdict(line) for line in found[key]] for key in ("summary", "over_time")}
    return {**found, **lines}


def render(found: Mapping[str, Any]) -> str:
    """The result as lines for a terminal."""
    return "\n".join(_lines(found))


def _lines(found: Mapping[str, Any]) -> Iterator[str]:
    agreement = found["agreement"]
    yield f"{found['entries']} entries of planner {found['writer']}"
    yield (
        f"plans played again: {agreement['same']} with the same integers, "
        f"{agreement['different']} with others"
    )
    if agreement["first_difference"]:
        yield f"first difference: {agreement['first_difference']}"
    if agreement["lost"]:
        yield f"{agreement['lost']} entries are missing: what follows them may differ"
    if agreement["taken_up"]:
        yield (
            f"{agreement['taken_up']} workers were met in the middle: what they had learned before "
            "is not in the log"
        )
    if not found["summary"]:
        yield "no worker was at work in it"
        return
    yield "\nPredicted on the statistics that the logged plans gathered, means:"
    yield from _table(found["summary"])
    if len(found["summary"]) > 1:
        yield "\nBy time:"
        yield from _table(found["over_time"])


def _table(lines: "Iterable[Line]") -> Iterator[str]:
    listed = list(lines)
    start_s = listed[0].start_s
    rows = [_COLUMNS, *(_row(line, start_s) for line in listed)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    for row in rows:
        yield "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))


def _row(line: "Line", start_s: float) -> tuple[str, ...]:
    return (
        f"{line.start_s - start_s:.1f}",
        f"{line.end_s - start_s:.1f}",
        line.policy,
        *(_number(value, 1) for value in (line.requests, line.draft_tokens, line.rows)),
        _number(line.rate_tokens_per_s, 1),
        _number(line.rate_vs_off_ratio, 3),
        _number(line.rate_vs_logged_ratio, 3),
    )


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _entries(log: str, writer: str | None) -> tuple[list[dict[str, Any]], int]:
    """The entries of one planner, the one named or the one with the most, and the lines that are
    none: a process that was killed leaves half of one."""
    from outrider_planner.log.entries import TornLineError, decode
    from outrider_planner.log.replay import writers

    entries, unreadable = [], 0
    for line in _raw_lines(log):
        try:
            entries.append(decode(line))
        except TornLineError:
            unreadable += 1
    found = writers(entries)
    if writer is not None and writer not in found:
        raise CommandError(f"no planner {writer!r} in this log, only {', '.join(sorted(found))}")
    chosen = writer or max(found, key=lambda name: found[name], default=None)
    return [entry for entry in entries if entry["w"] == chosen], unreadable


def _raw_lines(log: str) -> list[str]:
    if log.partition("://")[0] in _REDIS_SCHEMES:
        return asyncio.run(_stream_lines(log))
    from outrider_planner.log.file import read_lines

    try:
        return list(read_lines(Path(log)))
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"cannot read the decision log {log}: {error}") from error


async def _stream_lines(url: str) -> list[str]:
    from outrider_planner.log.stream import read_stream
    from outrider_planner.store.base import StoreUnavailableError
    from outrider_planner.store.redis import RedisStore

    try:
        store = RedisStore(url)
    except ValueError as error:
        raise CommandError(f"{url} is no address of a Redis: {error}") from error
    try:
        return [line async for line in read_stream(store)]
    except StoreUnavailableError as error:
        raise CommandError(f"cannot read the decision log: {error}") from error
    finally:
        await store.close()
