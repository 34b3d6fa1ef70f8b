"""What the drafters' benchmark rests on: engines that differ in their plans and in nothing else."""

from pathlib import Path

import pytest

from benchmarks.drafter_cells import accepted_shares
from benchmarks.gpu.engines import static_plan
from benchmarks.in_process import Decoded, SteppedEngine
from outrider_worker.assembly import Assembly, assemble
from outrider_worker.engine.types import RequestKey, RequestSpec, SamplingParams
from outrider_worker.settings import WorkerSettings
from tests.support.tiny_models import shared_tiny_llama

PERIOD = (5, 6, 7, 8)


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Assembly:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    settings = WorkerSettings(
        model=str(shared_tiny_llama()),
        drafter="ngram",
        threads=1,
        device="cpu",
        max_running=2,
        max_rows=8,
        context=128,
        max_draft=2,
        kv_gib=0.01,
    )
    return assemble(settings)


def requests() -> list[RequestSpec]:
    """Two prompts that repeat, so that n-gram has something to draft."""
    params = SamplingParams(max_tokens=80, ignore_eos=True)
    prompts = (PERIOD * 4, PERIOD[::-1] * 4)
    return [
        RequestSpec(RequestKey("test", f"{number}"), prompt, params)
        for number, prompt in enumerate(prompts)
    ]


def test_a_planned_engine_obeys_the_planner_and_all_give_the_text_of_off(worker: Assembly) -> None:
    off = SteppedEngine.fixed(worker, static_plan("off", 0, 2)).decode(requests())
    fixed = SteppedEngine.fixed(worker, static_plan("ngram", 2, 2)).decode(requests())
    planned = SteppedEngine.planned(worker, "static:1").decode(requests())
    assert off.token_ids == fixed.token_ids == planned.token_ids
    assert all(len(ids) == 80 for ids in off.token_ids.values())
    assert (off.verified_per_round, off.tokens_per_round) == (0, 1)
    assert fixed.verified_per_round > 0
    assert planned.verified_per_round > 0, "the planner's plan is in force"
    assert max(r.verified_tokens / r.requests for r in planned.records) <= 1


def test_only_rounds_of_all_requests_count(worker: Assembly) -> None:
    off = SteppedEngine.fixed(worker, static_plan("off", 0, 2)).decode(requests())
    assert {record.requests for record in off.records} == {2}
    assert not any(record.prefill_tokens for record in off.records)
    assert off.seconds > 0
    with pytest.raises(RuntimeError, match="longer answers"):
        Decoded({}, (), 0.0)


def test_shares_by_position_reach_as_far_as_drafts_were_verified() -> None:
    assert accepted_shares([3, 1], [4, 2, 2]) == [0.75, 0.5, 0.0]
