"""Names of models turned into something a worker can load, before any process is started."""

from pathlib import Path

from outrider_cli.demo import DEMO, fetch_demo_model
from outrider_cli.errors import CommandError
from outrider_cli.launch import missing_package
from outrider_cli.options import is_hub_id, local_model


def model_for_workers(model: str) -> str:
    """What `OUTRIDER_WORKER_MODEL` is set to for `--model model`.

    Raises:
        CommandError: there is no such model, or it cannot be fetched.
    """
    if model == DEMO:
        fetch_demo_model()
        return DEMO
    if is_hub_id(model):
        return str(fetch_hub_model(model))
    return str(local_model(model))


def fetch_hub_model(hub_id: str) -> Path:
    """The local folder of a hub model, downloaded where missing.

    Raises:
        CommandError: it is no hub id, the worker's packages are missing, or the hub cannot be
            reached or does not have it.
    """
    if not is_hub_id(hub_id):
        raise CommandError(f"unknown model {hub_id!r}: give {DEMO!r} or a hub id (name/name)")
    try:
        # Late: torch takes seconds and may not be installed.
        from outrider_worker.model import ModelError, resolve_model
    except ModuleNotFoundError as error:
        raise missing_package(error, "worker") from error
    try:
        return resolve_model(hub_id)
    except ModelError as error:
        raise CommandError(str(error)) from error
