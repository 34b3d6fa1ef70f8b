"""The contract on the wire: linted, and the committed stubs are what the generators make of it."""

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent


def _generate(folder: Path) -> None:
    subprocess.run(
        [ROOT / "proto/generate.sh", folder],
        env={**os.environ, "PYTHON": sys.executable},
        check=True,
        capture_output=True,
    )


def test_committed_stubs_equal_regenerated_ones(tmp_path: Path) -> None:
    _generate(tmp_path)
    fresh, committed = _tree(tmp_path), _tree(ROOT / "proto/gen")
    assert sorted(fresh) == sorted(committed)
    assert [name for name, text in fresh.items() if committed[name] != text] == []


def test_no_module_is_missing_while_stubs_are_made(tmp_path: Path) -> None:
    """Each is replaced by renaming; what no source makes any more goes."""
    shutil.copytree(ROOT / "proto/gen", tmp_path, dirs_exist_ok=True)
    stale = tmp_path / "outrider/gone/v1/gone_pb2.py"
    stale.parent.mkdir(parents=True)
    stale.write_text("")
    kept = [tmp_path / name for name in _tree(ROOT / "proto/gen")]
    with ThreadPoolExecutor(1) as thread:
        made = thread.submit(_generate, tmp_path)
        looks = 0
        while not made.done():
            assert [path for path in kept if not path.exists()] == []
            looks += 1
        made.result()
    assert looks > 10
    assert _tree(tmp_path) == _tree(ROOT / "proto/gen")


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
