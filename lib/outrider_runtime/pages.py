"""Pages that services show in a browser: fixed files, read once, with headers that lock them in.

Knows files, their types, and what a page of ours may do: run its own scripts, use its own styles,
talk to its own server, and nothing else (no inline script or style, no other host, no frame, no
text that becomes markup: `require-trusted-types-for`). What pages share lies in `page_assets`,
which every page finds under `shared/`. Knows no framework and no route; paths are looked up in a
table, so that no request reaches the file system.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

SHARED = Path(__file__).parent / "page_assets"
_MEDIA_TYPES: Mapping[str, str] = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self' data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
# A page is asked for anew each time and answered with 304 while it is the same: after an upgrade
# nobody sees old scripts with a new server.
_LOCKED: Mapping[str, str] = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": _POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


@dataclass(frozen=True, slots=True)
class PageAnswer:
    """What to send: 200 with a body, or 304 without one where the browser has it already."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Page:
    """All files of one page; `index.html` is found under the empty path."""

    def __init__(self, folder: Path) -> None:
        """Read `folder`, and what all pages share, under `shared/`.

        Raises:
            FileNotFoundError: there is no `index.html`.
            ValueError: a file's type is none that pages are made of.
        """
        self._files = {**dict(_files(SHARED, "shared/")), **dict(_files(folder, ""))}
        if "index.html" not in self._files:
            raise FileNotFoundError(f"{folder} holds no index.html")
        self._files[""] = self._files["index.html"]

    @property
    def paths(self) -> frozenset[str]:
        """Every path that is answered, relative to the page's own."""
        return frozenset(self._files)

    def answer(self, path: str, if_none_match: str | None = None) -> PageAnswer | None:
        """The file at a path relative to the page's own; None where there is none.

        Args:
            path: without a slash in front; "" for the page itself.
            if_none_match: that header of the request, if it had one.
        """
        found = self._files.get(path)
        if found is not None and _has(if_none_match, found.headers["ETag"]):
            return PageAnswer(304, found.headers, b"")
        return found


def _files(folder: Path, prefix: str) -> Iterator[tuple[str, PageAnswer]]:
    for path in sorted(folder.iterdir()):
        if path.suffix in _MEDIA_TYPES:
            yield prefix + path.name, _whole(path)
        elif path.suffix not in (".py", ".pyc") and path.is_file():
            raise ValueError(f"{path.name} is no file of a page")


def _whole(path: Path) -> PageAnswer:
    body = path.read_bytes()
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    headers = {**_LOCKED, "Content-Type": _MEDIA_TYPES[path.suffix], "ETag": tag}
    return PageAnswer(200, headers, body)


def _has(if_none_match: str | None, tag: str) -> bool:
    """Whether a browser's list of tags holds this one; a proxy may have marked it as weak."""
    given = (if_none_match or "").split(",")
    return any(item.strip().removeprefix("W/") in (tag, "*") for item in given)
