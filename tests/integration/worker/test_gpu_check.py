"""The GPU check's dry run: the same script on tiny sizes, kernels interpreted."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from benchmarks import gpu_check

pytest.importorskip("triton")

ROOT = Path(__file__).parents[3]
PARTS = {"parity", "order", "graphs", "rounds"}


def test_a_dry_run_holds_and_leaves_its_findings(tmp_path: Path) -> None:
    output = tmp_path / "result.json"
    done = subprocess.run(
        [ROOT / "benchmarks" / "gpu_check.sh", "--dry-run", "--output", output],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(output.read_text())
    assert result["dry_run"] is True
    assert {"torch", "triton", "cpu", "gpu"} <= result["machine"].keys()
    assert result["parts"].keys() == PARTS
    assert all(part["ok"] for part in result["parts"].values())
    rounds = result["parts"]["rounds"]["rounds"]
    policies = {(entry["policy"], entry["requests"]) for entry in rounds}
    assert policies == {(p, n) for p in ("off", "static:3", "two_stage") for n in (1, 2)}
    assert all(entry["tokens_per_s"] > 0 for entry in rounds)


def test_without_a_gpu_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("sys.argv", ["gpu_check"])
    assert gpu_check.main() == 2
    assert "no CUDA device" in capsys.readouterr().err
