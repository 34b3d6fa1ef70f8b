"""A real Prometheus scrapes a real stack under load: every panel and every rule has an answer."""

import json
import os
import re
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pytest

from deploy.compose.load import Load
from tests.deploy.tools import tool
from tests.support.chat import MODEL
from tests.support.net import LOOPBACK, http_get, wait_until
from tests.support.processes import Stack
from tests.support.prometheus import Prometheus, Value, finite
from tests.support.promql import names
from tests.support.questions import Question, questions, rules

pytestmark = [pytest.mark.live, pytest.mark.timeout(540)]

WORKERS = 2
CLIENTS = 4
MAX_DRAFT_TOKENS = 3
DRAFTERS = ("ngram", "suffix")
FILL_LIMIT_S = 150.0
# Grafana's own variables; the rate is taken over far more scrapes than it needs.
VARIABLES = {"$__rate_interval": "30s", "$instance": ".*"}
# What need not have any series, and why; where it has some they are looked at as all others.
SILENT = {
    "outrider_planner_plans_held_total": "no plan had to be held",
    "outrider_planner_reports_rejected_total": "every report may have been believed",
    "outrider_worker_graph_fallbacks_total": "a CPU captures no graphs, so none was missed",
}
# Of a machine that has other work, these may be true: they ask how fast it is.
ABOUT_SPEED = {
    *("OutriderCostDrift", "OutriderExposedHostTime", "OutriderSlowFirstToken"),
    *("OutriderGuardTrips", "OutriderDrift", "OutriderPlansStale"),
}
# By title; other panels are bounded by their unit.
BOUNDS: Mapping[str, tuple[float, float]] = {
    "Draft length": (0, MAX_DRAFT_TOKENS),
    "Draft length planned": (0, MAX_DRAFT_TOKENS),
    "Rows verified": (1, CLIENTS * (MAX_DRAFT_TOKENS + 1)),
    "Accept length": (1, MAX_DRAFT_TOKENS + 1),
    "Tokens per row": (0.1, 2),
    "Tokens per round": (0.5, CLIENTS * (MAX_DRAFT_TOKENS + 1)),
    "Rate against off": (0.2, MAX_DRAFT_TOKENS + 1),
    "Shadow policies": (0, MAX_DRAFT_TOKENS + 1),
    "Guards tripped": (0, WORKERS),
    # What speculation gained counts below zero.
    "Guard's ledger": (-1e6, 1e6),
    "Requests decoding": (0, CLIENTS),
    **dict.fromkeys(("Workers", "Workers ready", "With a planner"), (WORKERS, WORKERS)),
    "Workers by planner": (WORKERS, WORKERS),
    "Planners": (1, 1),
    "Plans refused or malformed": (0, 0),
}
BY_UNIT = {"percentunit": (0.0, 1.0), "s": (0.0, 300.0), "reqps": (0.0, 100.0)}
# Often enough for rates, and for rules that rest on recorded series.
SCRAPED = "min(count_over_time(up[1m])) >= 5"
WHOSE = frozenset({"instance"})
ANYTHING = (0.0, 1e6)


@dataclass(frozen=True)
class Watched:
    """The stack under load, who watches it, and the answers from before there was any."""

    prometheus: Prometheus
    stack: Stack
    idle: Mapping[Question, list[Value]]


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    stack = Stack(
        *("--threads", "1", "--drafter", ",".join(DRAFTERS)),
        *("--max-draft", str(MAX_DRAFT_TOKENS)),
        workers=WORKERS,
        # Few shapes to measure before the worker is ready.
        environment={
            "OUTRIDER_WORKER_MAX_ROWS": str(CLIENTS * (MAX_DRAFT_TOKENS + 1)),
            "OUTRIDER_WORKER_MAX_RUNNING": str(CLIENTS),
        },
        ready_limit_s=240,
    )
    ports = {
        "outrider-router": [stack.router_port],
        "outrider-planner": [stack.planner_http_port],
        "outrider-worker": [stack.worker_metrics_port + index for index in range(WORKERS)],
    }
    program, folder = tool("prometheus"), tmp_path_factory.mktemp("prometheus")
    with stack, Prometheus(program, folder, ports) as prometheus:
        ask_for_shadows(stack)
        wait_until(lambda: prometheus.ask(SCRAPED), FILL_LIMIT_S, SCRAPED)
        idle = {question: prometheus.ask(question.expr) for question in asked()}
        with Traffic(stack):
            wait_until_filled(prometheus)
            yield Watched(prometheus, stack, idle)


class Traffic:
    """Clients that ask all the time, one of which asks for what the others do not."""

    def __init__(self, stack: Stack) -> None:
        self._load = Load(f"http://{LOOPBACK}:{stack.router_port}", "none")
        self._url = f"{stack.base_url}/chat/completions"
        self._threads = [
            *(threading.Thread(target=self._load.client) for _ in range(CLIENTS - 1)),
            threading.Thread(target=self._odd_ones),
        ]

    def __enter__(self) -> None:
        for thread in self._threads:
            thread.start()

    def __exit__(self, *_: object) -> None:
        self._load.stop.set()
        for thread in self._threads:
            thread.join(60)

    def _odd_ones(self) -> None:
        """What cannot be had, an answer left alone, a drafter that is not the planner's choice."""
        while not self._load.stop.wait(0.5):
            self._post({"max_tokens": -1})
            self._post({"max_tokens": 64, "stream": True, "nothing_like_it": 1})
            self._post({"max_tokens": 48, "speculation": {"drafter": DRAFTERS[-1]}})

    def _post(self, fields: Mapping[str, object]) -> None:
        """Reads one line of what comes, and closes."""
        messages = [{"role": "user", "content": "Say one two three ten times, and nothing else."}]
        body = json.dumps({"model": MODEL, "messages": messages, **fields}).encode()
        request = urllib.request.Request(self._url, body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                answer.readline()
        except urllib.error.HTTPError as error:
            error.close()


def ask_for_shadows(stack: Stack) -> None:
    """Policies that are evaluated beside the one in force."""
    url = f"http://{LOOPBACK}:{stack.planner_http_port}/v1/deployments/{MODEL}/settings"
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {stack.token}"}
    body = json.dumps({"shadows": ["static:3"]}).encode()
    request = urllib.request.Request(url, body, headers, method="PUT")
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.status == 200


def asked() -> list[Question]:
    """All questions with Grafana's variables filled in."""
    return [replace(question, expr=filled(question.expr)) for question in questions()]


def filled(expr: str) -> str:
    for variable, value in VARIABLES.items():
        expr = expr.replace(variable, value)
    return expr


def must_answer(question: Question) -> bool:
    """Alerts and marks are silent while all is well; some series are, too."""
    silent = names(question.expr).metrics & SILENT.keys()
    return question.kind not in ("alert", "mark") and not silent


def complete(question: Question, values: list[Value]) -> bool:
    """Whether there are numbers, of each worker where the question is one about workers."""
    wanted = WORKERS if "outrider_worker" in question.expr and question.shown == WHOSE else 1
    return finite(values) and len({value.labels.get("instance") for value in values}) >= wanted


def wait_until_filled(prometheus: Prometheus) -> None:
    """Until every question that must have an answer has one; the tests say which has none."""
    end_s = time.monotonic() + FILL_LIMIT_S
    waiting = [question for question in asked() if must_answer(question)]
    while waiting and time.monotonic() < end_s:
        time.sleep(2.0)
        waiting = [each for each in waiting if not complete(each, prometheus.ask(each.expr))]


def test_every_target_is_scraped(watched: Watched) -> None:
    assert watched.prometheus.up() == dict.fromkeys(
        ("outrider-router", "outrider-planner", "outrider-worker"), 1.0
    )


def test_before_the_first_request_ratios_have_no_value(watched: Watched) -> None:
    """G06: nothing is divided by zero; only a quantile of nothing is NaN by its definition."""
    assert len(watched.idle) > 100
    wrong = {
        question.where: values
        for question, values in watched.idle.items()
        if values and not finite(values)
        if not re.search(r"histogram_quantile|:p95_", question.expr)
    }
    assert wrong == {}


def test_every_question_has_an_answer_within_its_bounds(watched: Watched) -> None:
    """Panels, recorded series and variables; labels that a legend shows are there."""
    wrong = {}
    for question in asked():
        values = watched.prometheus.ask(question.expr)
        found = fault(question, values)
        if found and (values or must_answer(question)):
            wrong[f"{question.where}: {question.expr}"] = found
    assert wrong == {}


def fault(question: Question, values: list[Value]) -> str:
    """What is wrong with an answer; empty if nothing is."""
    if not complete(question, values):
        return f"no number, or not of each worker: {values}"
    title = question.where.partition(": ")[2]
    least, most = BOUNDS.get(title, BY_UNIT.get(question.unit, ANYTHING))
    beyond = [value for value in values if not least <= value.value <= most]
    if beyond:
        return f"not within {least:g} and {most:g}: {beyond}"
    unnamed = [value for value in values if question.shown - value.labels.keys()]
    return f"without a label that its legend shows: {unnamed}" if unnamed else ""


def test_an_answer_that_is_wrong_would_be_found() -> None:
    ratio = Question("board: panel", "a / b", "stat", frozenset({"drafter"}), "percentunit")
    for values in ([], [Value({}, float("nan"))], [Value({"drafter": "a"}, 1.2)], [Value({}, 1)]):
        assert fault(ratio, values)
    assert fault(ratio, [Value({"drafter": "a"}, 1.0)]) == ""


def test_rules_are_evaluated_and_a_healthy_stack_alarms_nobody(watched: Watched) -> None:
    evaluated = watched.prometheus.rules()
    assert len(evaluated) == len(list(rules()))
    failed = {each["name"]: each.get("lastError") for each in evaluated if each["health"] != "ok"}
    assert failed == {}
    loud = {rule["name"] for rule in evaluated if rule.get("state", "inactive") != "inactive"}
    assert loud <= ABOUT_SPEED


def test_what_planners_know_of_workers_is_shown_by_the_workers_instances(watched: Watched) -> None:
    first = watched.stack.worker_metrics_port
    instances = {f"{LOOPBACK}:{first + index}" for index in range(WORKERS)}
    joined = [question for question in asked() if "outrider_worker_info" in question.expr]
    assert len(joined) == 3
    for question in joined:
        values = watched.prometheus.ask(question.expr)
        assert {value.labels.get("instance") for value in values} == instances, question.where


def test_alerts_look_at_series_that_are_there(watched: Watched) -> None:
    """An alert about a series that nobody exports is silent for ever."""
    alerts = (question for question in asked() if question.kind == "alert")
    metrics = {name for alert in alerts for name in names(alert.expr).metrics}
    assert len(metrics) > 12
    missing = {name for name in metrics if not finite(watched.prometheus.ask(f"count({name})"))}
    assert missing == set()


@pytest.mark.parametrize(
    ("label", "metric", "values"),
    [
        ("drafter", "outrider_worker_draft_tokens_total", DRAFTERS),
        ("class", "outrider_worker_verified_tokens_total", ("greedy", "sampled")),
        ("outcome", "outrider_router_requests_total", ("length", "invalid", "cancelled")),
        ("field", "outrider_router_ignored_fields_total", ("other",)),
    ],
)
def test_what_was_done_is_shown(
    watched: Watched, label: str, metric: str, values: Sequence[str]
) -> None:
    """All drafters drafted, both classes of requests ran, and spoilt requests were counted."""
    chosen = f'{metric}{{{label}=~"{"|".join(values)}"}}'
    all_there = f"count(sum by ({label}) ({chosen}) > 0) == {len(values)}"
    wait_until(lambda: watched.prometheus.ask(all_there), FILL_LIMIT_S, all_there)


@pytest.mark.parametrize("service", ["router", "planner", "worker"])
def test_promtool_finds_no_fault_in_the_metrics(watched: Watched, service: str) -> None:
    ports = {
        "router": watched.stack.router_port,
        "planner": watched.stack.planner_http_port,
        "worker": watched.stack.worker_metrics_port,
    }
    status, text = http_get(ports[service], "/metrics")
    assert status == 200
    checked = subprocess.run(
        [tool("promtool"), "check", "metrics"], input=text, capture_output=True, env=os.environ
    )
    assert (checked.returncode, checked.stderr.decode()) == (0, "")
