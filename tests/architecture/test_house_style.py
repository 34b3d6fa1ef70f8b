"""Habits that no linter of ours checks: sizes that fit on a screen, and words we do not leave."""

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pytest

ROOT = Path(__file__).resolve().parents[2]
MAX_FILE_LINES = 350
MAX_FUNCTION_LINES = 60
MAX_MEDIAN_FUNCTION_LINES = 10
CODE = ("lib", "services", "cli")
LOG_METHODS = {"debug", "info", "warning", "error", "exception"}
# Brackets keep the patterns from finding themselves.
UNFINISHED = re.compile(r"TO[D]O|FIX[M]E|XX[X]|not implemented [y]et|for [n]ow\b")
ELSEWHERE = re.compile(r"py[p]i\.org|python[h]osted\.org|/[w]ork/|/[o]pt/")


def python_files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def tracked_texts() -> Iterator[tuple[str, str]]:
    """Name and text of every file that belongs to the repository."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    for name in listed.stdout.splitlines():
        try:
            yield name, (ROOT / name).read_text()
        except (UnicodeDecodeError, FileNotFoundError, IsADirectoryError):
            continue


def functions(path: Path) -> Iterator[tuple[str, int]]:
    """Name and length in lines of every function; the docstring and decorators are not counted.

    Nor is the signature of a kernel: it has to list pointers and strides one by one.
    """
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node) and len(node.body) > 1 else node.body
            signature = 0 if _is_kernel(node) else node.body[0].lineno - node.lineno
            yield node.name, signature + (body[-1].end_lineno or 0) - body[0].lineno + 1


def _is_kernel(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any("triton.jit" in ast.unparse(decorator) for decorator in node.decorator_list)


def test_files_fit_in_a_reading() -> None:
    lengths = {str(path.relative_to(ROOT)): _line_count(path) for path in python_files(*CODE)}
    assert {name: lines for name, lines in lengths.items() if lines > MAX_FILE_LINES} == {}


def _line_count(path: Path) -> int:
    return len(path.read_text().splitlines())


def test_functions_fit_on_a_screen() -> None:
    found = [(path, *each) for path in python_files(*CODE) for each in functions(path)]
    long = {f"{p.relative_to(ROOT)}:{name}": n for p, name, n in found if n > MAX_FUNCTION_LINES}
    assert long == {}
    assert median(lines for _, _, lines in found) <= MAX_MEDIAN_FUNCTION_LINES


@pytest.mark.parametrize("words", [UNFINISHED, ELSEWHERE], ids=["unfinished", "elsewhere"])
def test_no_words_we_do_not_leave(words: re.Pattern[str]) -> None:
    found = [
        f"{name}: {match.group()}"
        for name, text in tracked_texts()
        if (match := words.search(text)) and not name.startswith("proto/gen/")
    ]
    assert found == []


def test_every_module_says_what_it_is() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in python_files(*CODE)
        if not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert silent == []


def logged_events(path: Path) -> Iterator[str]:
    """What stands where a log call names its event."""
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Call(ast.Name("log" | "_log"), [event, *_]):
                yield ast.unparse(event)
            case ast.Call(ast.Attribute(ast.Name("log" | "_log"), method), [event, *_]):
                if method in LOG_METHODS:
                    yield ast.unparse(event)


def test_events_of_the_log_have_names_that_can_be_searched_for() -> None:
    modules = [path for path in python_files(*CODE) if "get_logger(" in path.read_text()]
    events = [(path.name, event) for path in modules for event in logged_events(path)]
    assert len(events) > 60
    assert [each for each in events if not re.fullmatch(r"'[a-z]+(_[a-z]+)*'", each[1])] == []
