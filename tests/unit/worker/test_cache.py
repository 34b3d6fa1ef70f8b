"""What is kept in the user's cache is made once, however many processes want it at once."""

import fcntl
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from outrider_worker.cache import one_at_a_time
from tests.support.tiny_models import make_tiny_llama
from tests.unit.worker.tensors.test_gguf import write_gguf

# As a worker starts: kernels first, here the one that compiles fastest, then the model.
STARTED = """
import sys
from pathlib import Path
from outrider_runtime.logs import configure_logs
configure_logs("worker")
sys.stdin.readline()
from outrider_worker.kernels.panel_linear import _multiply
from outrider_worker.model.gguf import converted_folder
steps = []
converted_folder(Path(sys.argv[1]), lambda step, done: steps.append(step))
print(_multiply.cache_hits, steps.count("reading GGUF metadata"))
"""
HOLDS = """
import sys, time
from pathlib import Path
from outrider_worker.cache import one_at_a_time
with one_at_a_time(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def started(script: str, path: Path, **environment: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", script, path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **environment},
        text=True,
    )


def answers(processes: Sequence["subprocess.Popen[str]"]) -> list[list[int]]:
    """What each printed, after all were told to go on at once."""
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    return [[int(word) for word in process.communicate()[0].split()] for process in processes]


def test_two_first_starts_compile_and_convert_once(tmp_path: Path) -> None:
    model = write_gguf(tmp_path / "tiny.gguf", make_tiny_llama(tmp_path / "source"))
    cache = str(tmp_path / "cache")
    empty = {"XDG_CACHE_HOME": cache, "NUMBA_CACHE_DIR": f"{cache}/kernels"}
    both = [started(STARTED, model, **empty) for _ in range(2)]
    read, converted = zip(*answers(both), strict=True)
    assert sorted(read) == [0, 1], "one compiled it, one found it"
    assert sorted(converted) == [0, 1]


def test_a_process_that_dies_lets_go(tmp_path: Path) -> None:
    holder = started(HOLDS, tmp_path / "thing")
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    lock = (tmp_path / ".thing.lock").open()
    with pytest.raises(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    holder.kill()
    holder.communicate()
    with one_at_a_time(tmp_path / "thing"), pytest.raises(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    lock.close()


def test_a_folder_that_cannot_be_locked_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with one_at_a_time(tmp_path / "file" / "thing"):
        assert list(tmp_path.iterdir()) == [tmp_path / "file"]
