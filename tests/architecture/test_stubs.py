"""The contract on the wire: linted, and the committed stubs are what the generators make of it."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent


def test_committed_stubs_equal_regenerated_ones(tmp_path: Path) -> None:
    subprocess.run(
        [ROOT / "proto/generate.sh", tmp_path],
        env={**os.environ, "PYTHON": sys.executable},
        check=True,
        capture_output=True,
    )
    fresh, committed = _tree(tmp_path), _tree(ROOT / "proto/gen")
    assert sorted(fresh) == sorted(committed)
    assert [name for name, text in fresh.items() if committed[name] != text] == []


def _tree(folder: Path) -> dict[str, bytes]:
    """Files below the folder by their relative names, bytecode left out."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_contract_passes_buf_lint() -> None:
    done = subprocess.run([BIN / "buf", "lint", "proto"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_buf_lint_would_notice(tmp_path: Path) -> None:
    (tmp_path / "buf.yaml").write_text((ROOT / "proto/buf.yaml").read_text())
    folder = tmp_path / "outrider/common/v1"
    folder.mkdir(parents=True)
    (folder / "common.proto").write_text(
        'syntax = "proto3";\npackage outrider.common.v1;\nenum Colour { RED = 0; }\n'
    )
    done = subprocess.run([BIN / "buf", "lint", tmp_path], capture_output=True, text=True)
    assert done.returncode != 0
    assert "UNSPECIFIED" in done.stdout
