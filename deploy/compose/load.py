"""Keeps a stack busy: several clients, each with one streamed answer after the other.

Prompts are of three kinds, since drafts hold differently on each: text to repeat, code to complete,
questions to talk about. Needs nothing beyond Python. Settings by environment: `LOAD_URL`,
`LOAD_KEYS_FILE`, `LOAD_CLIENTS`, `LOAD_SECONDS` (0: until stopped). What came of the requests is
told on stdout every ten seconds; a stack that is not there, or not ready, is waited for.
"""

import json
import os
import random
import threading
import time
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

PROMPTS = (
    "Repeat this sentence five times: The river rises in the hills and runs south to the sea.",
    "Copy this list twice, line by line: copper pipe, brass valve, rubber seal, steel bolt.",
    "Write a Python function that counts the words of a text, then one that counts its lines.",
    "Write the same HTML table row for Monday, Tuesday, Wednesday, Thursday and Friday.",
    "Why do leaves change their colour in autumn?",
    "What makes a good teacher? Give three reasons.",
)
SUMMARY_EVERY_S = 10.0
REST_S = 1.0
SILENCE_LIMIT_S = 60.0


class NothingServed(Exception):
    """The stack answers, but no worker has a model ready."""


class Load:
    """Clients on threads, and what came of their requests."""

    def __init__(self, url: str, key: str) -> None:
        self._url = url.rstrip("/")
        self._headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self.stop = threading.Event()

    def client(self) -> None:
        """Requests one after the other; a failed one is followed by a rest."""
        while not self.stop.is_set():
            try:
                counted = {"answers": 1, "tokens": self._answer()}
            # Whatever a stack that starts, ends or is replaced answers with: the load goes on.
            except Exception as error:
                counted = {f"failed ({type(error).__name__}: {error})": 1}
            with self._lock:
                self._counts.update(counted)
            if "answers" not in counted:
                self.stop.wait(REST_S)

    def _answer(self) -> int:
        """The tokens of one answer, read to its end.

        Raises:
            ValueError: the stream ended with an error or without its last event.
        """
        tokens = 0
        with self._open("/v1/chat/completions", self.body()) as events:
            for line in events:
                text = line.decode().strip().removeprefix("data: ")
                if text == "[DONE]":
                    return tokens
                event = json.loads(text) if text.startswith("{") else {}
                if "error" in event:
                    raise ValueError(event["error"]["message"])
                tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
        raise ValueError("the stream ended early")

    def body(self) -> dict[str, object]:
        """A request for one streamed answer."""
        return {
            "model": self.model,
            "messages": [{"role": "user", "content": random.choice(PROMPTS)}],
            "max_tokens": random.choice((32, 64, 128)),
            "temperature": random.choice((0.0, 0.7)),
            "stream": True,
            "stream_options": {"include_usage": True},
        }

    @property
    def model(self) -> str:
        """The first model served.

        Raises:
            NothingServed: there is none yet.
        """
        with self._open("/v1/models") as answer:
            models = json.load(answer)["data"]
        if not models:
            raise NothingServed("no model is served yet")
        return str(models[0]["id"])

    def _open(self, path: str, body: object = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data, self._headers)
        return urllib.request.urlopen(request, timeout=SILENCE_LIMIT_S)

    def summary(self) -> str:
        """What came of the requests since the last summary."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
        told = ", ".join(f"{name}: {count}" for name, count in sorted(counts.items())) or "nothing"
        return told if counts["answers"] else f"waiting for {self._url}; {told}"


def main() -> None:
    """Run for `LOAD_SECONDS`, or until stopped."""
    file = os.environ.get("LOAD_KEYS_FILE")
    key = Path(file).read_text().strip().split(",")[0] if file else "none"
    load = Load(os.environ.get("LOAD_URL", "http://127.0.0.1:8000"), key)
    limit_s = float(os.environ.get("LOAD_SECONDS") or 0) or float("inf")
    for _ in range(int(os.environ.get("LOAD_CLIENTS") or 4)):
        threading.Thread(target=load.client, daemon=True).start()
    started_s = time.monotonic()
    while (left_s := limit_s - (time.monotonic() - started_s)) > 0:
        time.sleep(min(SUMMARY_EVERY_S, left_s))
        print(load.summary(), flush=True)


if __name__ == "__main__":
    main()
