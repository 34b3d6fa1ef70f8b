"""Runs the real supervisor over stand-in processes: `python -m tests.support.stand_in_stack JSON`.

The argument maps a process's name to its extra environment, and may hold `ports` (four numbers:
planner, worker, router, unused) and `restart`.
"""

import asyncio
import json
import os
import sys
from pathlib import Path

from outrider_cli.errors import StackError
from outrider_cli.report import Console, StateFile
from outrider_cli.stack import ChildSpec, Port, Stack
from outrider_cli.supervisor import Supervisor

MODULE = "tests.support.stand_in"


def build(asked: dict[str, dict[str, str]], ports: list[int]) -> Stack:
    """A stack of one planner, one worker and one router, all stand-ins."""

    def spec(name: str, kind: str, number: int) -> ChildSpec:
        environment = {
            "STAND_IN_NAME": name,
            f"STAND_IN_{kind.upper()}_PORT": str(number),
            **asked.get(name, {}),
        }
        return ChildSpec(name, MODULE, environment, {kind: Port("127.0.0.1", number, "-")}, 1.0)

    planner, worker, router = ports
    return Stack(
        planner=spec("planner", "http", planner),
        workers=(spec("worker-0", "grpc", worker),),
        router=spec("router", "http", router),
        common={"OUTRIDER_TOKEN": "a-secret"},
    )


def main() -> int:
    asked = json.loads(sys.argv[1])
    stack = build(asked.get("processes", {}), asked["ports"])
    state = StateFile(Path(os.environ["OUTRIDER_STATE_FILE"]), stack)
    console = Console(tuple(child.name for child in stack.children))
    try:
        asyncio.run(Supervisor(stack, console, state, asked.get("restart", True)).run())
    except StackError as error:
        print(f"failed: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
