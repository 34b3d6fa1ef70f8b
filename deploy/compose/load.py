"""Keeps a stack busy: several clients, each with one streamed answer after the other.

Prompts are of three kinds, since drafts hold differently on each: text to repeat, code to complete,
questions to talk about. Needs nothing beyond Python. Settings by environment: `LOAD_URL`,
`LOAD_KEYS_FILE`, `LOAD_CLIENTS`, `LOAD_SECONDS` (0: until stopped).
"""

import json
import os
import random
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path

PROMPTS = (
    "Repeat this sentence five times: The river rises in the hills and runs south to the sea.",
    "Copy this list twice, line by line: copper pipe, brass valve, rubber seal, steel bolt.",
    "Write a Python function that counts the words of a text, then one that counts its lines.",
    "Write the same HTML table row for Monday, Tuesday, Wednesday, Thursday and Friday.",
    "Why do leaves change their colour in autumn?",
    "What makes a good teacher? Give three reasons.",
)
SUMMARY_EVERY_S = 10.0


class Load:
    """Clients on threads, and what came of their requests."""

    def __init__(self, url: str, key: str) -> None:
        self._url = url.rstrip("/")
        self._headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self.stop = threading.Event()

    def client(self) -> None:
        """Requests one after the other; a failed one is followed by a second of rest."""
        while not self.stop.is_set():
            try:
                counted = {"answers": 1, "tokens": self._answer()}
            except (OSError, ValueError, urllib.error.URLError) as error:
                counted = {f"failed ({type(error).__name__})": 1}
                self.stop.wait(1.0)
            with self._lock:
                self._counts.update(counted)

    def _answer(self) -> int:
        """The tokens of one answer, read to its end.

        Raises:
            ValueError: the stream ended with an error or without its last event.
        """
        tokens = 0
        with urllib.request.urlopen(self._request("/v1/chat/completions", self.body())) as events:
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
        """The first model served."""
        with urllib.request.urlopen(self._request("/v1/models")) as answer:
            return str(json.load(answer)["data"][0]["id"])

    def _request(self, path: str, body: object = None) -> urllib.request.Request:
        data = None if body is None else json.dumps(body).encode()
        return urllib.request.Request(self._url + path, data, self._headers)

    def summary(self) -> str:
        """What came of the requests since the last summary."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
        return ", ".join(f"{name}: {count}" for name, count in sorted(counts.items())) or "nothing"


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
