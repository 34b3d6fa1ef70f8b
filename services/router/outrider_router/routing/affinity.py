"""Which worker has lately seen which beginnings of prompts. Pure.

Prompts are cut into blocks; each block is known by a hash over everything up to its end, as in a
worker's prefix cache. The newest worker to get a block owns it; the oldest blocks are forgotten.
A collision costs a less fitting worker, never a wrong text.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence

BLOCK_TOKENS = 64
_MOST_BLOCKS_OF_A_PROMPT = 128
_MOST_BLOCKS = 65_536


class PrefixIndex:
    """Blocks of prompts and the workers that have them."""

    def __init__(self, most_blocks: int = _MOST_BLOCKS) -> None:
        self._most_blocks = most_blocks
        self._owners: OrderedDict[int, str] = OrderedDict()

    def matches(self, prompt_ids: Sequence[int], salt: bytes) -> Mapping[str, int]:
        """Tokens of the prompt's beginning that each worker has seen; those without are absent."""
        seen: dict[str, int] = {}
        for end, block in _blocks(prompt_ids, salt):
            owner = self._owners.get(block)
            if owner is None:
                break
            seen[owner] = end
        return seen

    def learn(self, prompt_ids: Sequence[int], salt: bytes, address: str) -> None:
        """The worker gets this prompt."""
        for _, block in _blocks(prompt_ids, salt):
            self._owners[block] = address
            self._owners.move_to_end(block)
        while len(self._owners) > self._most_blocks:
            self._owners.popitem(last=False)

    def forget(self, addresses: Collection[str]) -> None:
        """These workers have lost what they knew."""
        for block in [b for b, owner in self._owners.items() if owner in addresses]:
            del self._owners[block]


def _blocks(prompt_ids: Sequence[int], salt: bytes) -> Iterator[tuple[int, int]]:
    """End and chained hash of each whole block."""
    chain = hash(salt)
    most = min(len(prompt_ids) // BLOCK_TOKENS, _MOST_BLOCKS_OF_A_PROMPT)
    for number in range(most):
        start = number * BLOCK_TOKENS
        chain = hash((chain, tuple(prompt_ids[start : start + BLOCK_TOKENS])))
        yield start + BLOCK_TOKENS, chain
