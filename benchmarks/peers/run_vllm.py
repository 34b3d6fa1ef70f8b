"""vLLM's CPU engine, in process, stepped by hand. Runs in an environment of its own.

PYTHON -m benchmarks.peers.run_vllm FOLDER
"""

from importlib import import_module
from typing import Any

from benchmarks.peers.child import Answer, Prompts, serve

_MOST_REQUESTS = 32
_CONTEXT_TOKENS = 1024


class Vllm:
    """A Peer. Threads come from OMP_NUM_THREADS."""

    def __init__(self, folder: str) -> None:
        self._vllm: Any = import_module("vllm")
        self._engine: Any = self._vllm.LLM(
            model=folder,
            dtype="float32",
            enforce_eager=True,
            max_model_len=_CONTEXT_TOKENS,
            max_num_seqs=_MOST_REQUESTS,
            block_size=32,
            enable_prefix_caching=False,
        ).llm_engine
        self._jobs = 0

    @property
    def version(self) -> str:
        return str(self._vllm.__version__)

    def decode(self, prompts: Prompts, tokens: int) -> list[Answer]:
        """See Peer.decode."""
        self._jobs += 1
        kinds = import_module("vllm.sampling_params")
        params = self._vllm.SamplingParams(
            temperature=0.0,
            max_tokens=tokens,
            ignore_eos=True,
            detokenize=False,
            output_kind=kinds.RequestOutputKind.DELTA,
        )
        answers = {f"{self._jobs}-{place}": Answer() for place in range(len(prompts))}
        for name, prompt in zip(answers, prompts, strict=True):
            self._engine.add_request(name, {"prompt_token_ids": list(prompt)}, params)
        while self._engine.has_unfinished_requests():
            for output in self._engine.step():
                answers[_own_name(output.request_id, answers)].add(output.outputs[0].token_ids)
        return list(answers.values())


def _own_name(request_id: str, answers: dict[str, Answer]) -> str:
    """Our name of a request; the engine may have appended something to it."""
    if request_id in answers:
        return request_id
    return request_id.rsplit("-", 1)[0]


if __name__ == "__main__":
    serve(lambda words: Vllm(words[0]))
