"""`python -m benchmarks [NAME …]`: all benchmarks one after the other, or those named."""

import subprocess
import sys

ALL = ("planner_plan", "push_latency", "decode", "speculation")


def main() -> int:
    """Each in a process of its own: thread counts and caches of one must not reach the next."""
    names = sys.argv[1:] or list(ALL)
    unknown = sorted(set(names) - set(ALL))
    if unknown:
        print(f"unknown: {', '.join(unknown)}; there are {', '.join(ALL)}", file=sys.stderr)
        return 2
    return max(subprocess.call([sys.executable, "-m", f"benchmarks.{name}"]) for name in names)


if __name__ == "__main__":
    sys.exit(main())
