"""What every device stream promises: order, results in host memory, errors where they are read."""

import threading
import time
from collections.abc import Iterator, Mapping

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from outrider_worker.streams import (
    DeviceStream,
    EmulatedStream,
    ImmediateStream,
    Stopwatch,
    Work,
    open_stream,
    pack,
    unpack,
)

LATENCY_S = 0.02


@pytest.fixture(params=["immediate", "emulated"])
def stream(request: pytest.FixtureRequest) -> Iterator[DeviceStream]:
    stream = ImmediateStream() if request.param == "immediate" else EmulatedStream()
    yield stream
    stream.close()


def _noting(notes: list[int], number: int) -> Work:
    def work(_watch: Stopwatch) -> Mapping[str, Tensor]:
        notes.append(number)
        return {"number": torch.tensor(number)}

    return work


def test_work_runs_in_order_of_submission(stream: DeviceStream) -> None:
    notes: list[int] = []
    pending = [stream.submit(_noting(notes, number)) for number in range(50)]
    assert pending[-1].result().tensors["number"].item() == 49
    assert notes == list(range(50))


def test_results_may_be_read_in_any_order(stream: DeviceStream) -> None:
    pending = [stream.submit(_noting([], number)) for number in range(9)]
    read = [each.result().tensors["number"].item() for each in reversed(pending)]
    assert read == list(range(8, -1, -1))


def test_the_host_may_change_what_it_has_uploaded(stream: DeviceStream) -> None:
    """Lists at once, on every stream; tensors too where the work may still have to run."""
    values = [1, 2, 3]
    uploaded = stream.upload(values, torch.int64)
    values[0] = 99
    assert stream.submit(lambda _: {"sum": uploaded.sum()}).result().tensors["sum"].item() == 6


def test_a_host_tensor_is_copied_where_work_runs_later() -> None:
    stream = EmulatedStream(LATENCY_S)
    values = torch.ones(4, dtype=torch.int64)
    uploaded = stream.upload(values, torch.int64)
    pending = stream.submit(lambda _: {"sum": uploaded.sum()})
    values.zero_()
    assert pending.result().tensors["sum"].item() == 4
    stream.close()


def test_uploads_have_the_type_asked_for(stream: DeviceStream) -> None:
    assert stream.upload([0.5, 2], torch.float64).tolist() == [0.5, 2.0]
    assert stream.upload([], torch.int64).shape == (0,)
    assert stream.upload(torch.tensor([7], dtype=torch.int32), torch.int64).dtype == torch.int64


def test_results_are_what_they_were_when_the_work_ended() -> None:
    """Work behind it moves static tensors on; a late reader must not see that."""
    stream = EmulatedStream()
    state = torch.zeros(1, dtype=torch.int64)

    def step(_watch: Stopwatch) -> Mapping[str, Tensor]:
        return {"state": state.add_(1)}

    pending = [stream.submit(step) for _ in range(20)]
    pending[-1].result()
    read = [each.result().tensors["state"].item() for each in pending]
    assert read == list(range(1, 21))
    stream.close()


def _broken(_watch: Stopwatch) -> Mapping[str, Tensor]:
    raise RuntimeError("the device has failed")


def test_an_emulated_device_reports_an_error_where_it_is_read_and_goes_on() -> None:
    stream = EmulatedStream()
    broken = stream.submit(_broken)
    behind = stream.submit(_noting([], 5))
    with pytest.raises(RuntimeError, match="the device has failed"):
        broken.result()
    assert behind.result().tensors["number"].item() == 5
    stream.close()


def test_an_immediate_device_reports_an_error_at_once() -> None:
    with pytest.raises(RuntimeError, match="the device has failed"):
        ImmediateStream().submit(_broken)


def test_seconds_are_told_by_part_and_laps_of_one_part_add_up(stream: DeviceStream) -> None:
    def work(watch: Stopwatch) -> Mapping[str, Tensor]:
        for part, part_s in (("target", 0.01), ("draft", 0.005), ("target", 0.01)):
            time.sleep(part_s)
            watch.lap(part)
        return {}

    seconds = stream.submit(work).result().seconds
    assert set(seconds) == {"target", "draft"}
    assert seconds["target"] >= 0.02
    assert seconds["draft"] >= 0.005


def test_the_host_goes_on_while_an_emulated_device_works() -> None:
    stream = EmulatedStream()
    host_went_on = threading.Event()

    def work(_watch: Stopwatch) -> Mapping[str, Tensor]:
        return {"went on": torch.tensor(host_went_on.wait(timeout=5.0))}

    pending = [stream.submit(work) for _ in range(3)]
    host_went_on.set()
    assert all(each.result().tensors["went on"] for each in pending)
    stream.close()


def test_an_emulated_device_takes_its_time() -> None:
    stream = EmulatedStream(LATENCY_S)
    began_s = time.perf_counter()
    pending = [stream.submit(_noting([], number)) for number in range(5)]
    done = [each.result() for each in pending]
    assert time.perf_counter() - began_s >= 5 * LATENCY_S
    assert all(each.seconds["target"] >= LATENCY_S * 0.9 for each in done)
    stream.close()


def test_close_waits_for_what_was_submitted(stream: DeviceStream) -> None:
    notes: list[int] = []
    for number in range(20):
        stream.submit(_noting(notes, number))
    stream.close()
    assert notes == list(range(20))


def test_nothing_is_recorded_for_gradients(stream: DeviceStream) -> None:
    weight = torch.ones(2, requires_grad=True)
    result = stream.submit(lambda _: {"double": weight * 2}).result().tensors["double"]
    assert not result.requires_grad


def test_a_cpu_is_immediate() -> None:
    assert isinstance(open_stream(torch.device("cpu")), ImmediateStream)


DTYPES = (torch.int64, torch.int32, torch.uint8, torch.float32, torch.float64, torch.bool)
tensors = st.builds(
    lambda dtype, shape, seed: torch.randint(
        0, 2, shape, generator=torch.Generator().manual_seed(seed)
    ).to(dtype),
    st.sampled_from(DTYPES),
    st.lists(st.integers(0, 4), max_size=3),
    st.integers(0, 99),
)


@given(st.dictionaries(st.sampled_from("abcdef"), tensors))
def test_what_is_packed_is_unpacked(given_tensors: dict[str, Tensor]) -> None:
    flat, parts = pack(given_tensors)
    assert flat.dtype == torch.uint8
    assert flat.dim() == 1
    found = unpack(flat, parts)
    assert list(found) == list(given_tensors)
    for name, tensor in given_tensors.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)
