"""Runs one service inside this process; only here are the services' packages imported."""

import runpy
import sys

from outrider_cli.errors import CommandError


def run_service(name: str) -> None:
    """Become the service `name` (router, planner or worker), with settings from the environment.

    Raises:
        CommandError: the packages of the service's extra are not installed.
    """
    sys.argv = [f"outrider {name}"]
    try:
        runpy.run_module(f"outrider_{name}", run_name="__main__", alter_sys=True)
    except ModuleNotFoundError as error:
        raise missing_package(error, name) from error


def missing_package(error: ModuleNotFoundError, extra: str) -> Exception:
    """What to raise for an import that failed: the extra to install, or the error if it is ours."""
    if error.name is None or error.name.split(".")[0].startswith("outrider"):
        return error
    return CommandError(
        f"the {extra} needs the package {error.name!r}: pip install 'outrider[{extra}]'"
    )
