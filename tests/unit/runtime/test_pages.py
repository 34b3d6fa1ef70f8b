"""Pages: what is found, what it is called, and that a browser may do nothing else with it."""

import re
from pathlib import Path

import pytest

from outrider_planner.page import FOLDER as PLANNER_PAGE
from outrider_runtime.pages import SHARED, Page

SECOND_LINE_OF_DEFENCE = (
    "innerHTML",
    "outerHTML",
    "insertAdjacentHTML",
    "document.write",
    "eval(",
    "new Function",
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "index.html").write_text("<!doctype html>")
    (tmp_path / "main.js").write_text("export {};")
    return tmp_path


def test_the_page_its_files_and_the_shared_ones_are_found(folder: Path) -> None:
    page = Page(folder)
    whole = page.answer("")
    assert whole is not None
    assert (whole.status, whole.body) == (200, b"<!doctype html>")
    assert whole == page.answer("index.html")
    assert page.paths >= {"", "index.html", "main.js", "shared/base.css", "shared/dom.js"}
    types = {path: page.answer(path) for path in ("", "main.js", "shared/base.css")}
    assert [answer.headers["Content-Type"] for answer in types.values() if answer] == [
        "text/html; charset=utf-8",
        "text/javascript; charset=utf-8",
        "text/css; charset=utf-8",
    ]


@pytest.mark.parametrize(
    "path", ["other.js", "../pages.py", "shared/../../pages.py", "/etc/passwd", "shared/", "shared"]
)
def test_nothing_else_is_found(folder: Path, path: str) -> None:
    assert Page(folder).answer(path) is None


def test_a_browser_that_has_a_file_is_told_so(folder: Path) -> None:
    page = Page(folder)
    first = page.answer("main.js")
    assert first is not None
    tag = first.headers["ETag"]
    for given in (tag, f"W/{tag}", f'"other", {tag}', "*"):
        again = page.answer("main.js", given)
        assert again is not None
        assert (again.status, again.body, again.headers["ETag"]) == (304, b"", tag)
    (folder / "main.js").write_text("export const changed = true;")
    changed = Page(folder).answer("main.js", tag)
    assert changed is not None
    assert changed.status == 200


def test_a_page_may_run_its_own_scripts_and_nothing_else(folder: Path) -> None:
    answer = Page(folder).answer("")
    assert answer is not None
    policy = dict(
        part.strip().split(" ", 1) for part in answer.headers["Content-Security-Policy"].split(";")
    )
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert policy["require-trusted-types-for"] == "'script'"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


def test_what_is_no_page_is_refused(folder: Path) -> None:
    (folder / "photo.bmp").write_bytes(b"")
    with pytest.raises(ValueError, match="photo"):
        Page(folder)
    (folder / "photo.bmp").unlink()
    (folder / "index.html").unlink()
    with pytest.raises(FileNotFoundError, match=r"index\.html"):
        Page(folder)


@pytest.mark.parametrize("folder", [SHARED, PLANNER_PAGE], ids=["shared", "planner"])
def test_texts_never_become_markup_and_nothing_comes_from_elsewhere(folder: Path) -> None:
    """Held by the content security policy in the browser, and by this in the sources."""
    for path in folder.iterdir():
        if path.suffix not in (".js", ".css", ".html"):
            continue
        text = path.read_text()
        assert [word for word in SECOND_LINE_OF_DEFENCE if word in text] == [], path.name
        assert re.findall(r"(?:https?:)?//[a-z0-9.-]+\.[a-z]{2,}", text) == [], path.name
        if path.suffix == ".html":
            assert re.findall(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)", text) == []


def test_every_file_that_the_planners_page_asks_for_is_there() -> None:
    page = Page(PLANNER_PAGE)
    for name in page.paths - {""}:
        answer = page.answer(name)
        assert answer is not None
        if not name.endswith((".js", ".html")):
            continue
        base = name.rpartition("/")[0]
        asked = re.findall(r'(?:from|src=|href=)\s*"([^"#]+)"', answer.body.decode())
        for path in asked:
            found = "/".join(filter(None, (base, path.removeprefix("./"))))
            assert found in page.paths, f"{name} asks for {path}"
