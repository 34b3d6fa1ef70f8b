"""`python -m benchmarks [NAME …]`: all benchmarks one after the other, or those named.

One name alone may be followed by options of its own: `python -m benchmarks peers --runs 5`.
"""

import os
import subprocess
import sys

from outrider_worker.__main__ import SPIN_COUNT

ALL = (
    *("planner_plan", "planner_scale", "push_latency", "peers", "router"),
    *("rounds", "drafters", "calibration", "speculation", "predicted"),
)


def main() -> int:
    """Each in a process of its own: thread counts and caches of one must not reach the next."""
    words = sys.argv[1:]
    first_option = next((i for i, word in enumerate(words) if word.startswith("-")), len(words))
    names, options = words[:first_option], words[first_option:]
    if options and len(names) != 1:
        print("options belong to one benchmark: name it first", file=sys.stderr)
        return 2
    unknown = sorted(set(names) - set(ALL))
    if unknown:
        print(f"unknown: {', '.join(unknown)}; there are {', '.join(ALL)}", file=sys.stderr)
        return 2
    return max(_run(name, options) for name in names or ALL)


def _run(name: str, options: list[str]) -> int:
    """With the environment that a worker gives itself."""
    environment = {"GOMP_SPINCOUNT": SPIN_COUNT, **os.environ}
    return subprocess.call([sys.executable, "-m", f"benchmarks.{name}", *options], env=environment)


if __name__ == "__main__":
    sys.exit(main())
