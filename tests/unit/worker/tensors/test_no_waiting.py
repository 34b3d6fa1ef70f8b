"""Inside a round nothing may wait for an accelerator: no shape and no branch from a tensor's value.

A CPU never waits, so the operations that would make an accelerator do so are looked for by name,
while an engine runs ahead over the code paths of an accelerator (kernels interpreted). Plain copies
to the host look alike there and here: benchmarks/gpu_check.sh finds those.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from outrider_worker.attention import make_attention
from outrider_worker.engine.records import LaunchMode
from outrider_worker.engine.types import SamplingParams
from outrider_worker.model.loader import load_model
from outrider_worker.speculate.device_ngram import DeviceNgramDrafter
from outrider_worker.speculate.draft_laws import DraftLaws
from outrider_worker.speculate.rejection import RejectionVerifier
from outrider_worker.speculate.relaxed import RelaxedRule, RelaxedVerifier
from outrider_worker.speculate.verify import SamplerMatch, Verifier
from outrider_worker.streams import ImmediateStream, Pending, Work
from tests.support.engines import Bench, request, static_plan
from tests.support.tiny_models import shared_tiny_llama
from tests.unit.worker.tensors.judging import Table

pytest.importorskip("triton")

WAITING = {
    "_local_scalar_dense", "nonzero", "is_nonzero", "masked_select", "equal", "bincount",
    "repeat_interleave", "_unique", "_unique2", "unique_dim", "unique_consecutive",
}  # fmt: skip
"""Operations whose result's value or shape the host has to know."""

MASKED = {"index", "index_put", "index_put_", "_index_put_impl_"}
"""Those that do if they are indexed with booleans."""


class Waited(AssertionError):
    """An operation that waits for the device."""


class NoWaiting(TorchDispatchMode):
    """Raises Waited where an accelerator's host would wait."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        name = func.overloadpacket.__name__
        if name in WAITING or (name in MASKED and _by_booleans(args[1])):
            raise Waited(name)
        return func(*args, **(kwargs or {}))


def _by_booleans(indices: Sequence[torch.Tensor | None]) -> bool:
    return any(index is not None and index.dtype is torch.bool for index in indices)


class WatchedStream(ImmediateStream):
    """Runs work as an accelerator would: under watch, with the host going on meanwhile."""

    asynchronous = True

    def submit(self, work: Work) -> Pending:
        with NoWaiting():
            return super().submit(work)


@pytest.mark.parametrize(
    "waits",
    [
        lambda x: x[x > 0],
        lambda x: int(x.max()),
        lambda x: (x > 0).nonzero(),
        lambda x: torch.where(x > 0)[0],
        lambda x: x.masked_select(x > 0),
        lambda x: x.unique(),
        lambda x: bool((x > 0).any()),
    ],
)
def test_the_watch_sees_what_waits_and_nothing_else(
    waits: Callable[[torch.Tensor], object],
) -> None:
    x = torch.arange(3)
    with NoWaiting():
        assert torch.where(x > 0, x, 0).cumsum(0)[x].shape == (3,)
        with pytest.raises(Waited):
            waits(x)


def test_rounds_run_ahead_without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every stage of sampling but grammars, drafts made and picked on the device, prefill."""
    monkeypatch.setattr("outrider_worker.sampling.chain.picks_rows", lambda logits: False)
    model = load_model(shared_tiny_llama(), backend=make_attention("triton"))
    bench = Bench(
        plan=static_plan("ngram", 2, verify=lambda n, d: max(0, n * d - 1)),
        device_drafter=DeviceNgramDrafter(2),
        stream=WatchedStream(),
        model=model,
        max_draft_tokens=2,
    )
    answers = bench.run(
        request([5, 6, 7, 5, 6, 7, 5, 6], 5, top_logprobs=2, logit_bias=((7, 30.0), (5, 29.0))),
        request([9, 9, 9, 9], 5, temperature=1.0, top_p=0.9, top_k=20, min_p=0.01, seed=3),
        request(
            [4, 8, 4, 8, 4],
            5,
            repetition_penalty=1.2,
            presence_penalty=0.5,
            frequency_penalty=0.1,
            bad_words=((4, 8),),
            min_tokens=3,
            stop_token_ids=frozenset({8}),
        ),
    )
    assert all(answer.token_ids for answer in answers)
    assert {record.launch_mode for record in bench.records} == {LaunchMode.AHEAD}
    assert sum(record.verified_tokens for record in bench.records) > 0


@pytest.mark.parametrize(
    "verifier",
    [
        SamplerMatch(),
        RelaxedVerifier(RelaxedRule(open_id=5, close_id=6)),
        RejectionVerifier(DraftLaws(3, 2, 16, torch.bfloat16)),
        RejectionVerifier(DraftLaws(3, 2, 16, draft_ids=torch.arange(0, 16, 2))),
    ],
    ids=["match", "relaxed", "rejection", "rejection, few ids"],
)
def test_drafts_are_drawn_and_judged_without_waiting(
    monkeypatch: pytest.MonkeyPatch, verifier: Verifier
) -> None:
    for module in ("chain", "laws"):
        monkeypatch.setattr(f"outrider_worker.sampling.{module}.picks_rows", lambda logits: False)
    params = [
        SamplingParams(relaxed=True),
        SamplingParams(temperature=1.0, top_p=0.9, relaxed=True),
        SamplingParams(temperature=1.0, frequency_penalty=1.0),
    ]
    table, logits = Table.of(params, [[1, 5, 3]] * 3), torch.zeros(3, 3, 16)
    next_rows = table.next_rows()
    with NoWaiting():
        verifier.given(next_rows.rows.seat)
        chooser = verifier.chooser(next_rows)
        drafts = [chooser.choose(logits[:, step], step).token_ids for step in range(2)]
    rows = table.judged(logits, torch.stack(drafts, dim=1), torch.tensor([2, 1, 2]))
    with NoWaiting():
        verdict = verifier.verify(rows)
    assert verdict.emitted.shape == (3, 3)
