"""What the supervisor shows people and writes for programs: lines, the banner, the state file.

Lines of the services and of the supervisor go to stderr, the ready banner to stdout.
"""

import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TextIO

from outrider_cli.probes import reachable
from outrider_cli.stack import Port, Stack

SUPERVISOR = "outrider"
_QUESTION = "What is the capital of France?"


class Console:
    """Lines with the name of their process in front, in one column."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._width = max(len(name) for name in (SUPERVISOR, *names))

    def say(self, text: str) -> None:
        """A line of the supervisor itself."""
        self._line(SUPERVISOR, text)

    def of(self, name: str) -> Callable[[str], None]:
        """A function that shows lines of the process `name`."""
        return lambda line: self._line(name, line)

    def ready(
        self, port: Port, model: str, pages: Mapping[str, str], needs_key: bool = False
    ) -> None:
        """The banner: where to send requests, and one to copy; pages to look at, by what for."""
        url = base_url(port)
        width = max(map(len, pages), default=0) + 1
        looks = "".join(f"  {f'{name}:':<{width}} {page}\n" for name, page in pages.items())
        message = {"role": "user", "content": _QUESTION}
        body = json.dumps({"model": model, "temperature": 0, "messages": [message]})
        key = '    -H "Authorization: Bearer $key" \\\n' if needs_key else ""
        _write(
            sys.stdout,
            f"\nOutrider is ready: {url}\n\n"
            f"  curl {url}/chat/completions -H 'Content-Type: application/json' \\\n{key}"
            f"    -d '{body}'\n\n"
            f"{looks}\n"
            "Ctrl-C stops it.\n",
        )

    def _line(self, name: str, text: str) -> None:
        _write(sys.stderr, f"{name:<{self._width}} | {text}")


def base_url(port: Port) -> str:
    """The address OpenAI clients take as `base_url`."""
    return f"{root_url(port)}/v1"


def root_url(port: Port) -> str:
    """As a browser or a client on this machine reaches it."""
    host, scheme = reachable(port.host), "https" if port.tls else "http"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port.number}"


class StateFile:
    """The stack in one small JSON file for scripts and tests; never holds the token."""

    def __init__(self, path: Path | None, stack: Stack) -> None:
        self._path = path
        self._state: dict[str, Any] = {
            "supervisor": os.getpid(),
            "url": base_url(stack.router.ports["http"]),
            "ready": False,
            "ports": {
                child.name: {use: port.number for use, port in child.ports.items()}
                for child in stack.children
            },
            "children": {},
        }

    def child_started(self, name: str, pid: int, restarts: int) -> None:
        self._state["children"][name] = {"pid": pid, "restarts": restarts}
        self._write()

    def child_ended(self, name: str) -> None:
        self._state["children"].pop(name, None)
        self._write()

    def ready(self) -> None:
        self._state["ready"] = True
        self._write()

    def remove(self) -> None:
        if self._path:
            self._path.unlink(missing_ok=True)

    def _write(self) -> None:
        if not self._path:
            return
        partial = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        partial.write_text(json.dumps(self._state, indent=2))
        partial.replace(self._path)


def _write(stream: TextIO, text: str) -> None:
    """Write a line; a reader that went away (`outrider up | head`) must not end the stack."""
    try:
        print(text, file=stream, flush=True)
    except OSError:
        return
