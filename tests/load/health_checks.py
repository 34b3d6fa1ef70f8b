"""Asks a router again and again whether it is alive: `python -m tests.load.health_checks PORT`.

A process of its own, so that nothing the test does is taken for the router's. Goes on until its
input ends, then says in milliseconds how long each answer took.
"""

import asyncio
import http.client
import json
import select
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.support.net import LOOPBACK

_GAP_S = 0.01


@asynccontextmanager
async def health_checks(port: int) -> AsyncIterator[list[float]]:
    """Check while the block runs; after it, the list holds the milliseconds of each answer."""
    took_ms: list[float] = []
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.load.health_checks", str(port)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        await process.stdout.readline()
        yield took_ms
    finally:
        told, _ = await process.communicate(b"")
    took_ms += json.loads(told)


def main() -> None:
    connection = http.client.HTTPConnection(LOOPBACK, int(sys.argv[1]), timeout=30)
    took_ms: list[float] = []
    print("begun", flush=True)
    while not select.select([sys.stdin], [], [], _GAP_S)[0]:
        started_s = time.monotonic()
        connection.request("GET", "/health")
        response = connection.getresponse()
        response.read()
        assert response.status == 200
        took_ms.append((time.monotonic() - started_s) * 1e3)
    print(json.dumps(took_ms))


if __name__ == "__main__":
    main()
