"""The commands and their flags; a flag of `up` can also be given by the setting it stands for."""

import asyncio
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from outrider_cli.demo import DEMO, fetch_demo_model
from outrider_cli.errors import CommandError, StackError
from outrider_cli.explain import DEFAULT_URL, explanation
from outrider_cli.explain import render as render_explanation
from outrider_cli.inherited import inherited_tls, inherited_token
from outrider_cli.launch import run_service
from outrider_cli.models import fetch_hub_model, model_for_workers
from outrider_cli.options import LOOPBACK, StackOptions, default_decision_log
from outrider_cli.probes import require_free_ports
from outrider_cli.replay import render as render_replay
from outrider_cli.replay import replay as replay_log
from outrider_cli.replay import values as replay_values
from outrider_cli.report import Console, StateFile
from outrider_cli.simulate import DEFAULT_POLICIES, SimulateOptions
from outrider_cli.simulate import simulate as run_simulation
from outrider_cli.stack import build_stack
from outrider_cli.supervisor import Supervisor
from outrider_cli.train_drafter import DEFAULT_KIND, TrainOptions
from outrider_cli.train_drafter import train_drafter as run_training
from outrider_runtime import __version__

app = typer.Typer(
    name="outrider",
    help="LLM serving with speculative decoding planned at run time.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _flag(help_text: str, setting: str | None = None, **limits: Any) -> Any:
    """An option that can also be given by the environment variable of its setting."""
    return typer.Option(help=help_text, envvar=setting, show_envvar=False, **limits)


def _port(help_text: str, setting: str) -> Any:
    return _flag(help_text, setting, min=1, max=65535)


DecisionLog = Annotated[
    str, _flag("File for `outrider replay`, or off.", "OUTRIDER_PLANNER_DECISION_LOG")
]
DECISION_LOG = default_decision_log()
Threads = Annotated[
    int | None,
    _flag("CPU threads per worker (default: cores / workers).", "OUTRIDER_WORKER_THREADS", min=1),
]


@contextmanager
def _clear_errors() -> Iterator[None]:
    """End with the message alone: exit code 2 for the caller's mistakes, 1 for the stack's."""
    try:
        yield
    except (CommandError, StackError) as error:
        typer.echo(f"outrider: {error}", err=True)
        raise typer.Exit(2 if isinstance(error, CommandError) else 1) from error


@app.command()
def up(
    model: Annotated[
        str, _flag("Model folder, GGUF file, hub id, or 'demo'.", "OUTRIDER_WORKER_MODEL")
    ] = DEMO,
    workers: Annotated[int, _flag("Number of workers.", min=1, max=64)] = 1,
    drafter: Annotated[
        str,
        _flag(
            "Who drafts, with commas between: ngram, suffix, predicted, head, FOLDER, none, …",
            "OUTRIDER_WORKER_DRAFTER",
        ),
    ] = "ngram,predicted",
    policy: Annotated[
        str,
        _flag("How drafts are planned: two_stage, static:K, off, …", "OUTRIDER_PLANNER_POLICY"),
    ] = "two_stage",
    max_draft: Annotated[
        int, _flag("Longest draft, in tokens.", "OUTRIDER_WORKER_MAX_DRAFT", min=0, max=32)
    ] = 8,
    max_running: Annotated[
        int, _flag("Requests decoding at once, per worker.", "OUTRIDER_WORKER_MAX_RUNNING", min=1)
    ] = 32,
    context: Annotated[
        int, _flag("Longest prompt and answer, in tokens.", "OUTRIDER_WORKER_CONTEXT", min=16)
    ] = 2048,
    kv_gib: Annotated[
        float, _flag("KV cache per worker, in GiB.", "OUTRIDER_WORKER_KV_GIB", min=0.001)
    ] = 1.0,
    threads: Threads = None,
    host: Annotated[
        str, _flag("Address the router listens on.", "OUTRIDER_ROUTER_HOST")
    ] = LOOPBACK,
    port: Annotated[int, _port("The router's HTTP port.", "OUTRIDER_ROUTER_PORT")] = 8000,
    planner_port: Annotated[
        int, _port("The planner's gRPC port.", "OUTRIDER_PLANNER_GRPC_PORT")
    ] = 7070,
    planner_http_port: Annotated[
        int, _port("The planner's HTTP port.", "OUTRIDER_PLANNER_HTTP_PORT")
    ] = 7071,
    worker_port: Annotated[
        int, _port("First worker's gRPC port; the next ones follow.", "OUTRIDER_WORKER_PORT")
    ] = 7080,
    worker_metrics_port: Annotated[
        int,
        _port("First worker's metrics port; the next follow.", "OUTRIDER_WORKER_METRICS_PORT"),
    ] = 7180,
    decision_log: DecisionLog = DECISION_LOG,
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        _flag("Least level shown.", "OUTRIDER_LOG_LEVEL"),
    ] = "info",
    log_format: Annotated[
        Literal["console", "json"], _flag("Form of the services' lines.", "OUTRIDER_LOG_FORMAT")
    ] = "console",
    restart: Annotated[bool, typer.Option(help="Start a process again when it dies.")] = True,
) -> None:
    """Start planner, workers and router; Ctrl-C stops them."""
    flags = dict(locals())  # the parameters are the fields of StackOptions, name by name
    with _clear_errors():
        _up(StackOptions(**flags))


def _up(options: StackOptions) -> None:
    model = model_for_workers(options.model)
    token = inherited_token() or secrets.token_urlsafe(32)
    tls = inherited_tls()
    stack = build_stack(options, model, token, tls.https)
    require_free_ports(stack.children)
    console = Console(tuple(child.name for child in stack.children))
    path = os.environ.get("OUTRIDER_STATE_FILE")
    state = StateFile(Path(path) if path else None, stack)
    asyncio.run(Supervisor(stack, console, state, options.restart, tls.grpc).run())


@app.command()
def router() -> None:
    """Run a router alone; settings: OUTRIDER_ROUTER_*."""
    with _clear_errors():
        run_service("router")


@app.command()
def planner() -> None:
    """Run a planner alone; settings: OUTRIDER_PLANNER_*."""
    with _clear_errors():
        run_service("planner")


@app.command()
def worker() -> None:
    """Run a worker alone; settings: OUTRIDER_WORKER_*."""
    with _clear_errors():
        run_service("worker")


@app.command()
def explain(
    deployment: Annotated[
        str | None, typer.Argument(help="Which deployment; the only one where there is one.")
    ] = None,
    n: Annotated[
        int | None, typer.Option(help="Requests decoding; the present number by default.", min=1)
    ] = None,
    worker: Annotated[str | None, typer.Option(help="The worker's incarnation.")] = None,
    url: Annotated[
        str, typer.Option(help="The planner's HTTP port: OUTRIDER_PLANNER_HTTP_PORT of its host.")
    ] = DEFAULT_URL,
    as_json: Annotated[bool, typer.Option("--json", help="The planner's answer itself.")] = False,
) -> None:
    """Show why a worker is planned as it is; where a token is needed: OUTRIDER_TOKEN, or its file
    in OUTRIDER_SECRETS_DIR."""
    with _clear_errors():
        found = explanation(url, inherited_token(), deployment, n, worker)
        typer.echo(json.dumps(found, indent=2) if as_json else render_explanation(found))


@app.command()
def replay(
    log: Annotated[str, typer.Argument(help="A decision log's file, or the URL of its Redis.")],
    policy: Annotated[
        list[str] | None, typer.Option(help="A policy to compare; may be given several times.")
    ] = None,
    planner_incarnation: Annotated[
        str | None, typer.Option("--planner", help="Whose entries, where several planners wrote.")
    ] = None,
    worker: Annotated[str | None, typer.Option(help="Only this worker's plans.")] = None,
    spans: Annotated[int, typer.Option(help="Lines over time.", min=1, max=1000)] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="Numbers instead of tables.")] = False,
) -> None:
    """Decide a log's rounds again, offline, and compare what policies would have done."""
    with _clear_errors():
        found = replay_log(log, policy or [], planner_incarnation, worker, spans)
        typer.echo(json.dumps(replay_values(found)) if as_json else render_replay(found))


@app.command()
def simulate(
    scenarios: Annotated[
        list[str] | None, typer.Argument(help="Scenarios by name; none lists them.")
    ] = None,
    suite: Annotated[
        str | None, typer.Option(help="'targets': every claim of the planner, with intervals.")
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(help=f"Who plays; several times. Default: {', '.join(DEFAULT_POLICIES)}."),
    ] = None,
    repetitions: Annotated[int | None, typer.Option(help="Seeds per contender.", min=1)] = None,
    machine: Annotated[
        str | None, typer.Option(help="A built-in cost table, or the JSON file of one.")
    ] = None,
    requests: Annotated[int | None, typer.Option(help="Requests at once.", min=1, max=256)] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Results for programs.")] = None,
    plots: Annotated[Path | None, typer.Option(help="Folder for one SVG per scenario.")] = None,
    processes: Annotated[int | None, typer.Option(help="Default: one per core.", min=1)] = None,
) -> None:
    """Play policies against worlds whose truth is known; exit code 1 if a target is missed."""
    options = SimulateOptions(
        tuple(scenarios or ()),
        suite,
        tuple(policy or DEFAULT_POLICIES),
        repetitions,
        machine,
        requests,
        json_file,
        plots,
        processes,
    )
    with _clear_errors():
        if not run_simulation(options):
            raise typer.Exit(1)


@app.command()
def fetch_model(
    model: Annotated[str, typer.Argument(help="'demo', or a hub id where a network exists.")],
) -> None:
    """Get a model onto this machine and show where it is."""
    with _clear_errors():
        if model == DEMO:
            path, installed = fetch_demo_model()
            typer.echo(f"{path} ({'installed' if installed else 'already there'})")
        else:
            typer.echo(str(fetch_hub_model(model)))


@app.command()
def train_drafter(
    target: Annotated[str, _flag("Model folder, GGUF file, hub id, or 'demo'.")],
    out: Annotated[Path, _flag("Folder for everything; a run that was stopped goes on there.")],
    kind: Annotated[str, _flag("mtp-eagle or eagle3.")] = DEFAULT_KIND,
    prompts_file: Annotated[
        Path | None,
        _flag('Prompts beside the built-in ones: one a line, or JSON lines with a "prompt".'),
    ] = None,
    prompt_count: Annotated[int, _flag("Built-in prompts.", min=0)] = 1920,
    own_prompts: Annotated[int, _flag("Prompts that the target writes itself.", min=0)] = 1280,
    answer_tokens: Annotated[int, _flag("Longest answer, in tokens.", min=8, max=384)] = 160,
    steps: Annotated[int, _flag("Steps of training.", min=1)] = 600,
    draft_vocab: Annotated[int, _flag("Tokens that can be drafted.", min=16)] = 4096,
    seats: Annotated[int, _flag("Answers written at once.", min=1, max=256)] = 32,
    device: Annotated[Literal["auto", "cpu", "cuda"], _flag("Where to train.")] = "auto",
    precision: Annotated[
        Literal["auto", "float32", "bfloat16"],
        _flag("Of training's products (auto: bfloat16 where the machine has units for it)."),
    ] = "auto",
    threads: Annotated[int | None, _flag("CPU threads (default: all cores).", min=1)] = None,
    seed: Annotated[int, _flag("Same seed, same drafter.", min=0)] = 0,
) -> None:
    """Train a drafter for a model on the model's own answers."""
    flags = dict(locals())  # the parameters are the fields of TrainOptions, name by name
    with _clear_errors():
        run_training(TrainOptions(**flags))


@app.command()
def version() -> None:
    """Show the version."""
    typer.echo(f"outrider {__version__}")


if __name__ == "__main__":
    app()
