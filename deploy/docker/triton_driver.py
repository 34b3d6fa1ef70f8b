"""Lets an image without a compiler run Triton's kernels.

Triton compiles its kernels itself, but builds one C file, its glue to the CUDA driver, with what
`CC` names when the first GPU is used. `--build FOLDER` compiles that file beforehand and writes a
command `cc` that hands out the result; for any other source the command fails and says why.
"""

import hashlib
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

_COMMAND = """\
#!{python}
import hashlib, shutil, sys
from pathlib import Path
source, output = Path(sys.argv[1]), sys.argv[sys.argv.index("-o") + 1]
digest = hashlib.sha256(source.read_bytes()).hexdigest() if source.is_file() else ""
built = Path(__file__).parent / digest
if not digest or not built.is_file():
    sys.exit(f"this image has no compiler, and {{source.name}} was not compiled beforehand")
shutil.copyfile(built, output)
"""


def build(folder: Path) -> None:
    """Compile Triton's driver glue into `folder`, and put the command beside it."""
    import triton.backends.nvidia as nvidia

    backend = Path(nvidia.__path__[0])
    source = backend / "driver.c"
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as stubs:
        library = folder / hashlib.sha256(source.read_bytes()).hexdigest()
        _compile(source, library, backend / "include", _stub(Path(stubs)))
    write_command(folder, sys.executable)


def write_command(folder: Path, python: str) -> Path:
    """The command that hands out what `folder` holds, each file named by its source's digest."""
    command = folder / "cc"
    command.write_text(_COMMAND.format(python=python))
    command.chmod(0o755)
    return command


def _stub(folder: Path) -> Path:
    """A folder with an empty libcuda to link against: the real one comes with the machine."""
    empty = folder / "empty.c"
    empty.write_text("")
    subprocess.run(
        ["gcc", "-shared", "-Wl,-soname,libcuda.so.1", "-o", folder / "libcuda.so.1", empty],
        check=True,
    )
    return folder


def _compile(source: Path, library: Path, include: Path, stubs: Path) -> None:
    """As Triton itself would, with the header of the Python that will load it.

    The empty libcuda lends no symbol, so a linker would leave it out unless told otherwise.
    """
    headers = [f"-I{include}", f"-I{sysconfig.get_paths()['include']}"]
    linker = "-Wl,--no-as-needed,--allow-shlib-undefined"
    linked = [linker, f"-L{stubs}", "-l:libcuda.so.1"]
    options = ["-O3", "-shared", "-fPIC", "-Wno-psabi", "-o", str(library)]
    subprocess.run(["gcc", str(source), *options, *headers, *linked], check=True)


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] != "--build":
        sys.exit("usage: triton_driver.py --build FOLDER")
    build(Path(sys.argv[2]))
