"""What only a GPU can show. Skipped where there is none; benchmarks/gpu_check.sh runs the rest."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from benchmarks.gpu import graphs, order, parity
from benchmarks.gpu.machine import Machine
from benchmarks.gpu.models import TINY, random_model, tiny_config
from benchmarks.gpu.scene import Scene
from outrider_worker.graphs import CannotCapture, CapturedForwards, CudaCapture
from outrider_worker.streams import CudaStream, Stopwatch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

SLOW_CYCLES = 200_000_000
"""About a tenth of a second of a GPU's clock."""


@pytest.fixture
def machine() -> Machine:
    return Machine.choose(dry=False)


@pytest.fixture
def stream(machine: Machine) -> CudaStream:
    return CudaStream(machine.device)


@pytest.mark.parametrize("family", TINY)
def test_the_kernels_agree_with_the_cpu(machine: Machine, family: str) -> None:
    found = parity.check_family(machine, family)
    assert found["ok"], found


def test_rounds_run_ahead_in_order_and_never_wait(machine: Machine) -> None:
    found = order.check(machine)
    assert found["ok"], found


@pytest.mark.parametrize("family", TINY)
def test_graphs_have_the_bits_of_eager_launches(machine: Machine, family: str) -> None:
    model = random_model(tiny_config(family), machine.device, machine.dtype, machine.attention)
    found = graphs.check(machine, model, buckets=(1, 8, 64), context_tokens=100)
    assert found["ok"], found


def test_work_that_waits_is_refused_before_it_is_captured(machine: Machine) -> None:
    ones = torch.ones(3, device=machine.device)

    def waits() -> Tensor:
        return ones * float(ones.sum())

    capture = CudaCapture()
    with pytest.raises(CannotCapture, match="synchroniz"):
        capture(waits)
    assert torch.equal(capture(lambda: ones * 2)(), torch.full((3,), 2.0, device=machine.device))


def test_poisoned_buffers_reach_no_replay(machine: Machine) -> None:
    model = random_model(tiny_config("llama"), machine.device, machine.dtype, machine.attention)
    scene = Scene.random(model, machine.device, machine.dtype, seats=3, tokens=70)
    captured = CapturedForwards(model, scene.pool, scene.state.page_table, (4, 8), CudaCapture())
    known = scene.state.known[:-1]
    rows = scene.rows(known - 1, torch.ones_like(known), 3).rows
    with torch.inference_mode():
        expected = model.forward(rows.padded_to(4), scene.pool)[:3]
        captured._buffers.columns.fill_(2**40)
    hidden, _ = captured(rows, scene.pool)
    assert torch.equal(hidden, expected)


def test_submitting_does_not_wait_and_results_arrive_in_order(stream: CudaStream) -> None:
    """The second piece reads what the first one wrote behind a long sleep."""
    counter = torch.zeros(1, dtype=torch.int64, device="cuda")

    def adds(amount: int, sleeps: bool) -> Callable[[Stopwatch], dict[str, Tensor]]:
        def work(watch: Stopwatch) -> dict[str, Tensor]:
            if sleeps:
                torch.cuda._sleep(SLOW_CYCLES)
            counter.add_(amount)
            watch.lap("target")
            return {"count": counter.clone(), "flags": counter > 3}

        return work

    first, second = stream.submit(adds(1, sleeps=True)), stream.submit(adds(3, sleeps=False))
    assert not torch.cuda.current_stream().query(), "submitting waited for the device"
    assert second.result().tensors["count"].tolist() == [4]
    done = first.result()
    assert done.tensors["count"].tolist() == [1]
    assert done.tensors["flags"].tolist() == [False]
    assert done.seconds["target"] > 0.01


def test_an_upload_is_not_changed_by_what_the_host_does_later(stream: CudaStream) -> None:
    values = torch.arange(1000)
    torch.cuda._sleep(SLOW_CYCLES)
    uploaded = stream.upload(values, torch.int64)
    values.zero_()
    assert torch.equal(uploaded.cpu(), torch.arange(1000))
