"""transformers' own greedy loop.

python -m benchmarks.peers.run_transformers FOLDER THREADS
"""

from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM

from benchmarks.peers.child import Answer, Prompts, serve


class Transformers:
    """A Peer."""

    def __init__(self, folder: str, threads: int) -> None:
        torch.set_num_threads(threads)
        self._model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self._model.generation_config.eos_token_id = None  # nothing ends an answer early

    @property
    def version(self) -> str:
        return str(transformers.__version__)

    def decode(self, prompts: Prompts, tokens: int) -> list[Answer]:
        """See Peer.decode. Prompts of one length: nobody pads."""
        ids = torch.tensor(prompts)
        answers = [Answer() for _ in prompts]

        def note(sequences: torch.Tensor, _scores: object, **_: object) -> torch.Tensor:
            for answer, token_id in zip(answers, sequences[:, -1].tolist(), strict=True):
                answer.add([token_id])
            return torch.zeros(len(answers), dtype=torch.bool)

        with torch.inference_mode():
            self._model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=tokens,
                pad_token_id=0,
                stopping_criteria=[note],
            )
        return answers


if __name__ == "__main__":
    serve(lambda words: Transformers(words[0], int(words[1])))
