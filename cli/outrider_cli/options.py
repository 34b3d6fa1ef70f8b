"""What `outrider up` was asked for, as one frozen value, and the checks that need no network."""

import os
import re
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path

from outrider_cli.demo import DEMO
from outrider_cli.errors import CommandError

LOOPBACK = "127.0.0.1"
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_POLICY = re.compile(r"two_stage|lightspec|dspark|off|static:\d+|table:\S+")
_POLICY_GROUP = "outrider.policies"
_DRAFTER = re.compile(r"ngram|suffix|suffix-shared|predicted|head|mtp|none")
_DRAFT_MODEL = re.compile(r"draft:.+")
_ONLY_A_PATH = re.compile(r"[./~]|.*\.gguf$|.*/.*/")  # and no id of the hub
_DRAFTER_GROUP = "outrider.drafters"


@dataclass(frozen=True)
class StackOptions:
    """Flags of `outrider up`; names and defaults are those of the flags."""

    model: str = DEMO
    workers: int = 1
    drafter: str = "ngram,predicted"
    policy: str = "two_stage"
    max_draft: int = 8
    max_running: int = 32
    context: int = 2048
    kv_gib: float = 1.0
    threads: int | None = None
    host: str = LOOPBACK
    port: int = 8000
    planner_port: int = 7070
    planner_http_port: int = 7071
    worker_port: int = 7080
    worker_metrics_port: int = 7180
    decision_log: str = "off"
    log_level: str = "info"
    log_format: str = "console"
    restart: bool = True

    def __post_init__(self) -> None:
        _check_drafters(self.drafter)
        if not _POLICY.fullmatch(self.policy) and not _is_installed_policy(self.policy):
            raise CommandError(
                f"unknown policy {self.policy!r}: choose two_stage, lightspec, dspark, "
                "table:n=K,n=K,…, static:K (static:3) or off"
            )

    @property
    def threads_per_worker(self) -> int:
        """CPU threads of one worker's forward; the cores are shared out evenly by default."""
        return self.threads or max(1, (os.cpu_count() or 1) // self.workers)


def _is_installed_policy(text: str) -> bool:
    """Whether a package announces it; the planner checks what follows the colon."""
    return any(p.name == text.partition(":")[0] for p in entry_points(group=_POLICY_GROUP))


def default_decision_log() -> str:
    """Where a user's programs keep state that outlives them (XDG base directories)."""
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return str(Path(state).expanduser() / "outrider" / "decisions.jsonl")


def is_hub_id(model: str) -> bool:
    """True for `organisation/name` that is not a path on this machine."""
    return bool(_HUB_ID.fullmatch(model)) and not Path(model).exists()


def local_model(model: str) -> Path:
    """The absolute path of a model folder or GGUF file.

    Raises:
        CommandError: it is neither a folder with a `config.json` nor a GGUF file.
    """
    path = Path(model).expanduser().resolve()
    if path.is_dir():
        if (path / "config.json").is_file():
            return path
        raise CommandError(f"{path} is no model: it holds no config.json")
    if not path.exists():
        raise CommandError(
            f"unknown model {model!r}: give a local folder, a GGUF file, a hub id or {DEMO!r}"
        )
    if path.suffix != ".gguf":
        raise CommandError(f"{path} is no model: expected a folder or a .gguf file")
    return path


def _check_drafters(drafters: str) -> None:
    """Raises CommandError for a list that no worker takes, or a name that stands for nothing."""
    names = [name.strip() for name in drafters.split(",")]
    if not all(names):
        raise CommandError(f"--drafter {drafters!r} lacks a name: 'none' stands for no drafter")
    if twice := {name for name in names if names.count(name) > 1}:
        raise CommandError(f"--drafter {drafters!r} names {', '.join(sorted(twice))} twice")
    if "none" in names and len(names) > 1:
        raise CommandError(f"--drafter {drafters!r}: 'none' stands alone")
    installed = {point.name for point in entry_points(group=_DRAFTER_GROUP)}
    for name in names:
        _check_drafter(name, name in installed)


def _check_drafter(name: str, installed: bool) -> None:
    if _DRAFT_MODEL.fullmatch(name):
        model = name.removeprefix("draft:")
        if Path(model).expanduser().exists() or _ONLY_A_PATH.match(model):
            local_model(model)
    elif not _DRAFTER.fullmatch(name) and not installed and not Path(name).expanduser().exists():
        raise CommandError(
            f"unknown drafter {name!r}: give ngram, suffix, suffix-shared, predicted, head,"
            " mtp, draft:MODEL, none, a plug-in's name or the folder of a trained one"
        )
