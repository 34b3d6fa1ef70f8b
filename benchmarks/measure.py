"""What all benchmarks share: series with their noise, the machine, results as files."""

import json
import os
import platform
import statistics
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


class Series:
    """Repeated measurements of one quantity; quoted as median and range."""

    def __init__(self, values: Sequence[float] = ()) -> None:
        self.values = list(values)

    def add(self, value: float) -> None:
        self.values.append(value)

    def drop_warm_up(self) -> None:
        """Forget the first value."""
        del self.values[0]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def summary(self) -> dict[str, float]:
        return {
            "median": round(self.median, 4),
            "min": round(min(self.values), 4),
            "max": round(max(self.values), 4),
            "runs": len(self.values),
        }

    def __str__(self) -> str:
        return f"{self.median:.2f} ({min(self.values):.2f}–{max(self.values):.2f})"


def machine() -> dict[str, Any]:
    """Enough to tell two machines apart, and nothing that names one."""
    model = ""
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = info.read_text().splitlines()
        model = next((ln.split(":")[1].strip() for ln in lines if ln.startswith("model name")), "")
        flags = next((ln for ln in lines if ln.startswith("flags")), "")
        model += " (AVX-512)" if "avx512f" in flags else " (AVX2)" if "avx2" in flags else ""
    return {
        "cpu": model or platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "load_average": round(os.getloadavg()[0], 2),
    }


def write_result(name: str, options: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> None:
    """Keep what was measured, with its command, machine and date."""
    RESULTS.mkdir(exist_ok=True)
    result = {
        "benchmark": name,
        "command": f"python -m benchmarks.{name} {' '.join(sys.argv[1:])}".strip(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": machine(),
        "options": dict(options),
        "rows": list(rows),
    }
    file = RESULTS / f"{name}.json"
    file.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n")
    print(f"written: {file.relative_to(RESULTS.parent.parent)}")
