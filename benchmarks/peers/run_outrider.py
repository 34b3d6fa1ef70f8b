"""Our engine, in process, as the worker assembles it; speculation off.

python -m benchmarks.peers.run_outrider FOLDER THREADS
"""

from collections.abc import Sequence
from importlib.metadata import version

from benchmarks.peers.child import Answer, Prompts, serve
from outrider_worker.assembly import assemble
from outrider_worker.engine.engine import Engine
from outrider_worker.engine.inbox import Submit
from outrider_worker.engine.types import (
    RequestKey,
    RequestSpec,
    SamplingParams,
    TokenNews,
)
from outrider_worker.settings import WorkerSettings

_CONTEXT_TOKENS = 1024


class Outrider:
    """A Peer. Prompts are prefilled in one go, as the others do."""

    def __init__(self, folder: str, threads: int) -> None:
        settings = WorkerSettings(
            planner="",
            model=folder,
            threads=threads,
            max_draft=0,
            context=_CONTEXT_TOKENS,
            prefill_chunk=_CONTEXT_TOKENS,
            prefix_cache=False,
        )
        self._parts = assemble(settings).parts

    @property
    def version(self) -> str:
        return version("outrider")

    def decode(self, prompts: Prompts, tokens: int) -> list[Answer]:
        """See Peer.decode."""
        answers = [Answer() for _ in prompts]

        def note(_round: int, news: Sequence[TokenNews]) -> None:
            for item in news:
                answers[int(item.key.request_id)].add(item.token_ids)

        engine = Engine(self._parts, note, lambda _record: None)
        params = SamplingParams(max_tokens=tokens, ignore_eos=True)
        for number, prompt in enumerate(prompts):
            key = RequestKey("bench", f"{number}")
            engine.inbox.put(Submit(RequestSpec(key, tuple(prompt), params)))
        while not engine.idle:
            engine.step()
        return answers


if __name__ == "__main__":
    serve(lambda words: Outrider(words[0], int(words[1])))
