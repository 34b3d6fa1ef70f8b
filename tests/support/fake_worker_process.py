"""A fake worker as a process of its own, to be killed and stopped for real.

`python -m tests.support.fake_worker_process PORT GAP_S TEXT` answers every request with the text, a
token at a time, going on behind what was delivered elsewhere.
"""

import asyncio
import sys

from tests.support.fake_worker import FakeWorker, resuming


async def serve(port: int, gap_s: float, text: str) -> None:
    """Serve until killed."""
    async with FakeWorker(script=resuming(text, 1, gap_s=gap_s), port=port):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]))
