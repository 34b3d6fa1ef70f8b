"""llama.cpp through llama-cpp-python's low-level calls. Runs in an environment of its own.

    PYTHON -m benchmarks.peers.run_llama GGUF THREADS

K/V are kept in half precision, which is its default.
"""

import ctypes
import os
from importlib import import_module
from typing import Any

from benchmarks.peers.child import Answer, Prompts, serve

_MOST_REQUESTS = 32
_CONTEXT_TOKENS = 256
"""Of each request."""

Row = tuple[int, int, int]
"""(token, position, sequence)"""


class Llama:
    """A Peer."""

    def __init__(self, file: str, threads: int) -> None:
        if not os.path.exists(file):
            raise FileNotFoundError(file)
        self._lib: Any = import_module("llama_cpp")
        self._np: Any = import_module("numpy")
        self._lib.llama_backend_init()
        model = self._lib.llama_model_load_from_file(
            file.encode(), self._lib.llama_model_default_params()
        )
        params = self._lib.llama_context_default_params()
        params.n_ctx = _MOST_REQUESTS * _CONTEXT_TOKENS
        params.n_seq_max = _MOST_REQUESTS
        params.n_threads = params.n_threads_batch = threads
        self._context = self._lib.llama_init_from_model(model, params)
        if not self._context:
            raise RuntimeError("llama.cpp gave no context")
        vocabulary = self._lib.llama_model_get_vocab(model)
        self._vocab_size = int(self._lib.llama_vocab_n_tokens(vocabulary))
        self._batch = self._lib.llama_batch_init(params.n_batch, 0, 1)

    @property
    def version(self) -> str:
        return str(self._lib.__version__)

    def decode(self, prompts: Prompts, tokens: int) -> list[Answer]:
        """See Peer.decode."""
        self._lib.llama_memory_clear(self._lib.llama_get_memory(self._context), True)
        answers = [Answer() for _ in prompts]
        rows, wanted = _prompt_rows(prompts)
        for step in range(tokens):
            token_ids = self._forward(rows, wanted)
            for answer, token_id in zip(answers, token_ids, strict=True):
                answer.add([token_id])
            rows = [
                (token_id, len(prompts[sequence]) + step, sequence)
                for sequence, token_id in enumerate(token_ids)
            ]
            wanted = list(range(len(rows)))
        return answers

    def _forward(self, rows: list[Row], wanted: list[int]) -> list[int]:
        """One call over all rows; the best token at each wanted row."""
        batch = self._batch
        batch.n_tokens = len(rows)
        for place, (token_id, position, sequence) in enumerate(rows):
            batch.token[place] = token_id
            batch.pos[place] = position
            batch.n_seq_id[place] = 1
            batch.seq_id[place][0] = sequence
            batch.logits[place] = 0
        for place in wanted:
            batch.logits[place] = 1
        status = self._lib.llama_decode(self._context, batch)
        if status:
            raise RuntimeError(f"llama_decode gave {status}")
        return [self._best(place) for place in wanted]

    def _best(self, row: int) -> int:
        pointer = self._lib.llama_get_logits_ith(self._context, row)
        logits = ctypes.cast(pointer, ctypes.POINTER(ctypes.c_float * self._vocab_size)).contents
        return int(self._np.frombuffer(logits, dtype=self._np.float32).argmax())


def _prompt_rows(prompts: Prompts) -> tuple[list[Row], list[int]]:
    """All prompts' rows, and the place of each prompt's last one."""
    rows: list[Row] = []
    last: list[int] = []
    for sequence, prompt in enumerate(prompts):
        rows.extend((token_id, position, sequence) for position, token_id in enumerate(prompt))
        last.append(len(rows) - 1)
    return rows, last


if __name__ == "__main__":
    serve(lambda words: Llama(words[0], int(words[1])))
