"""Several modules of multi-token prediction that can be trained, each drafting one token.

The product trains one module that is used again and again; these are for tests of the other form
(`speculate.mtp_vanilla`), made of the same parts.

Letters: B texts, P pairs, A rows, d hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from outrider_worker.train.heads import MtpEagleHead, Unrolled
from outrider_worker.train.layer import Seen
from outrider_worker.train.target import TargetWeights


class VanillaHead(MtpEagleHead):
    """Itself the first module."""

    def __init__(self, target: TargetWeights, kept_ids: Tensor, modules: int) -> None:
        super().__init__(target, kept_ids)
        later = [MtpEagleHead(target, kept_ids) for _ in range(modules - 1)]
        self.later = nn.ModuleList(later)

    @property
    def modules_in_order(self) -> list[MtpEagleHead]:
        """The first one first."""
        return [self, *(each for each in self.later if isinstance(each, MtpEagleHead))]

    def unroll(self, batch: Unrolled, steps: int) -> list[Tensor]:
        """See TrainedHead: of as many steps as there are modules, at most."""
        carried, logits = list[Tensor](), list[Tensor]()
        for module in self.modules_in_order[:steps]:
            after, scores = module.leave(_last_rows(module, batch, carried))
            carried.append(after)
            logits.append(scores)
        return logits

    def published(self) -> dict[str, Tensor]:
        """As layers of a DeepSeek checkpoint, numbered from 0."""
        found = {n: w for n, w in super().published().items() if ".later." not in n}
        for number, module in enumerate(self.modules_in_order[1:], 1):
            for name, weight in module.published().items():
                found[name.replace("model.layers.0.", f"model.layers.{number}.")] = weight
        return found


def _last_rows(module: MtpEagleHead, batch: Unrolled, carried: Sequence[Tensor]) -> Tensor:
    """[B, A, d] of the module's layer, at the last of the pairs that it sees.

    carried: what the modules before it gave there. Pairs are shifted by as many places, and behind
    the committed ones come those made of the text's next tokens and what was carried.
    """
    ids, rows, place = batch.token_ids, batch.rows, len(carried)
    table, attention = module.get_buffer("embedding"), module.layer.self_attn
    x, residual = module.enter(embedding(ids[:, 1:], table), module.fuse(batch.features))
    positions = torch.arange(x.shape[1] - place).expand(len(ids), -1)
    seen = Seen(*attention.keys_values(x[:, place:], positions), rows - place)
    x, residual = (each.gather(1, rows[..., None].expand(-1, -1, each.shape[-1]))
                   for each in (x, residual))  # fmt: skip
    for number, hidden in enumerate(carried):
        fed = ids.gather(1, (rows + 2 + number).clamp(max=ids.shape[1] - 1))
        x, residual = module.enter(embedding(fed, table), hidden)
        keys, values = attention.keys_values(x, rows + 1 + number - place)
        seen.own_keys.append(keys)
        seen.own_values.append(values)
    return module.layer.finish(residual, attention(x, rows, seen))
