"""Which processes make up a stack, on which ports, and with which settings.

Pure: from options to child specifications. Settings travel by environment alone, so that the token
is never on a command line.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from outrider_cli.options import LOOPBACK, StackOptions, is_hub_id

PLANNER = "planner"
ROUTER = "router"


@dataclass(frozen=True)
class Port:
    """A port a child listens on, and the flag that moves it; `tls`: HTTP on it is HTTPS."""

    host: str
    number: int
    flag: str
    tls: bool = False


@dataclass(frozen=True)
class ChildSpec:
    """One process: `python -m module` with `environment` added to the supervisor's own."""

    name: str
    module: str
    environment: Mapping[str, str]
    ports: Mapping[str, Port]
    stop_limit_s: float


@dataclass(frozen=True)
class Stack:
    """All processes of one `outrider up`."""

    planner: ChildSpec
    workers: tuple[ChildSpec, ...]
    router: ChildSpec
    common: Mapping[str, str] = field(repr=False)

    @property
    def children(self) -> tuple[ChildSpec, ...]:
        return (self.planner, *self.workers, self.router)

    @property
    def stop_order(self) -> tuple[tuple[ChildSpec, ...], ...]:
        """Groups to stop one after the other: first no new requests, last no more plans."""
        return ((self.router,), self.workers, (self.planner,))


def build_stack(options: StackOptions, model: str, token: str, https: bool = False) -> Stack:
    """The processes for `options`.

    Args:
        options: the flags.
        model: what the workers are told to load.
        token: the secret of all gRPC calls.
        https: the router's environment has it answer HTTPS.
    """
    workers = tuple(_worker(options, model, index) for index in range(options.workers))
    common = {
        "OUTRIDER_TOKEN": token,
        "OUTRIDER_LOG_LEVEL": options.log_level,
        "OUTRIDER_LOG_FORMAT": options.log_format,
        "PYTHONUNBUFFERED": "1",
    }
    return Stack(_planner(options), workers, _router(options, workers, https), common)


def _planner(options: StackOptions) -> ChildSpec:
    grpc = Port(LOOPBACK, options.planner_port, "--planner-port")
    http = Port(LOOPBACK, options.planner_http_port, "--planner-http-port")
    environment = {
        "OUTRIDER_PLANNER_GRPC_HOST": grpc.host,
        "OUTRIDER_PLANNER_GRPC_PORT": str(grpc.number),
        "OUTRIDER_PLANNER_HTTP_HOST": http.host,
        "OUTRIDER_PLANNER_HTTP_PORT": str(http.number),
        "OUTRIDER_PLANNER_POLICY": options.policy,
        "OUTRIDER_PLANNER_DECISION_LOG": options.decision_log,
    }
    return ChildSpec(PLANNER, "outrider_planner", environment, {"grpc": grpc, "http": http}, 5.0)


def _worker(options: StackOptions, model: str, index: int) -> ChildSpec:
    grpc = Port(LOOPBACK, options.worker_port + index, "--worker-port")
    metrics = Port(LOOPBACK, options.worker_metrics_port + index, "--worker-metrics-port")
    environment = {
        "OUTRIDER_WORKER_HOST": grpc.host,
        "OUTRIDER_WORKER_PORT": str(grpc.number),
        "OUTRIDER_WORKER_METRICS_PORT": str(metrics.number),
        "OUTRIDER_WORKER_MODEL": model,
        # A hub model is loaded from a folder named by its commit; clients know it by its hub id.
        "OUTRIDER_WORKER_SERVED_NAME": options.model if is_hub_id(options.model) else "",
        "OUTRIDER_WORKER_DRAIN_LIMIT_S": "8",
        "OUTRIDER_WORKER_DRAFTER": options.drafter,
        "OUTRIDER_WORKER_PLANNER": f"{LOOPBACK}:{options.planner_port}",
        "OUTRIDER_WORKER_MAX_DRAFT": str(options.max_draft),
        "OUTRIDER_WORKER_MAX_RUNNING": str(options.max_running),
        "OUTRIDER_WORKER_CONTEXT": str(options.context),
        "OUTRIDER_WORKER_KV_GIB": str(options.kv_gib),
        "OUTRIDER_WORKER_THREADS": str(options.threads_per_worker),
    }
    ports = {"grpc": grpc, "metrics": metrics}
    return ChildSpec(f"worker-{index}", "outrider_worker", environment, ports, 10.0)


def _router(options: StackOptions, workers: tuple[ChildSpec, ...], https: bool) -> ChildSpec:
    http = Port(options.host, options.port, "--port", https)
    targets = ",".join(f"{LOOPBACK}:{worker.ports['grpc'].number}" for worker in workers)
    environment = {
        "OUTRIDER_ROUTER_HOST": http.host,
        "OUTRIDER_ROUTER_PORT": str(http.number),
        "OUTRIDER_ROUTER_WORKERS": targets,
    }
    return ChildSpec(ROUTER, "outrider_router", environment, {"http": http}, 15.0)
