"""The metrics reference, `docs/metrics.md`: what the services export, from their code.

Knows what each label holds and which values it can take: a label that is not described here, and
bounded, is refused. Does not know any metric.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from deploy.generate.exported import Exported, exported_metrics

# What a label holds, and why its values stay few.
LABELS: Mapping[str, tuple[str, str]] = {
    "class": (
        "API key's `class_label` and whether the request is `greedy` or `sampled`",
        "16: classes after the first 15 are `other`",
    ),
    "deployment": ("workers that share statistics", "one per worker, set at its start"),
    "draft_length": ("draft tokens planned for a round", "0 to the worker's `MAX_DRAFT`"),
    "drafter": ("the source of drafts", "those that the worker was started with"),
    "field": (
        "a request's field without effect",
        "those that the API lists; any other is `other`",
    ),
    "model": ("the name clients use", "one per worker, set at its start"),
    "mode": ("how a round was launched", "`ahead`, `late_mask`, `in_step`"),
    "outcome": ("how a request ended", "fixed lists of the router and of the worker"),
    "part": (
        "where time went",
        "`target`, `feed`, `draft`, `hidden_host`, `exposed_host`",
    ),
    "policy": ("a shadow policy", "at most four per deployment; those no longer asked for go"),
    "position": ("place in a draft, from 0", "below the worker's `MAX_DRAFT`"),
    "reason": ("why a report was not believed, or a plan held", "fixed lists of the planner"),
    "result": ("how an exchange with the store ended", "a fixed list of the planner"),
    "rows": ("row bucket of a target forward", "the worker's buckets, up to its `MAX_ROWS`"),
    "worker": (
        "at the router: the worker's address; at the planner and in `outrider_worker_info`: its"
        " incarnation, new at every start",
        "one per worker, at most 1024; the planner's go a minute after the worker left",
    ),
    "engine": ("as vLLM's", "`0`"),
    "finished_reason": ("as vLLM's", "`stop`, `length`, `abort`, `error`"),
    "model_name": ("as vLLM's", "the one model served; empty where there are several"),
}
# What a name's last words say of the unit; whatever ends otherwise is a plain number.
UNITS: Mapping[str, str] = {
    "tokens_per_second": "tokens/s",
    "seconds": "s",
    "tokens": "tokens",
    "ratio": "ratio",
    "rows": "rows",
    "pages": "pages",
    "entries": "entries",
}
_TITLES = {
    "router": "Router",
    "planner": "Planner",
    "worker": "Worker",
    "vllm": "The router under vLLM's names",
}
_NOTES = {
    "router": "`GET /metrics` at the router's port.",
    "planner": "`GET /metrics` at the planner's HTTP port. What is not known is not exported.",
    "worker": "`GET /metrics` at the worker's metrics port.",
    "vllm": "Beside its own, with `OUTRIDER_ROUTER_METRICS_ALIAS=vllm`.",
}
_HEADING = """\
# Metrics

All that the services export to Prometheus. Made from their code by `python -m deploy.generate`;
what to read from it is in [operations.md](operations.md#watching) and on the dashboards.

Counters end in `_total`: take their `rate`. A histogram has the series `_bucket` (with the label
`le`), `_sum` and `_count`. Times are in seconds; ratios are plain numbers, never percent.
Prometheus adds `job` and `instance`. Drafted, verified and accepted tokens are three counters, each
a part of the one before: never add them.
"""


def metrics_reference(rules: Iterable[Mapping[str, Any]]) -> str:
    """The whole file.

    Args:
        rules: of Prometheus, recording ones and others.

    Raises:
        ValueError: a label is not in `LABELS`.
    """
    metrics = exported_metrics()
    used = {label for own in metrics.values() for metric in own for label in metric.labels}
    if unknown := used - LABELS.keys():
        raise ValueError(f"labels without a description in LABELS: {sorted(unknown)}")
    sections = [_HEADING]
    sections += [_section(service, own) for service, own in metrics.items()]
    return "\n".join((*sections, _recorded(rules), _labels(used)))


def unit(name: str) -> str:
    """By the name's ending; empty for plain numbers."""
    stem = name.removesuffix("_total")
    stem = stem.partition("_by_")[0]
    return next((unit for end, unit in UNITS.items() if stem.endswith(f"_{end}")), "")


def _section(service: str, metrics: Sequence[Exported]) -> str:
    rows = [
        (f"`{each.name}`", each.kind, unit(each.name), ", ".join(each.labels), each.text)
        for each in metrics
    ]
    table = _table(("metric", "type", "unit", "labels", "meaning"), rows)
    return f"## {_TITLES[service]}\n\n{_NOTES[service]}\n\n{table}"


def _recorded(rules: Iterable[Mapping[str, Any]]) -> str:
    rows = [
        (f"`{rule['record']}`", f"`{' '.join(rule['expr'].split())}`".replace("|", "\\|"))
        for rule in rules
        if "record" in rule
    ]
    table = _table(("series", "expression"), rows)
    return f"## Recorded by rules\n\nShared by dashboards and alerts.\n\n{table}"


def _labels(used: Iterable[str]) -> str:
    rows = [(f"`{label}`", *LABELS[label]) for label in sorted(used)]
    note = "No label holds what a client writes, and none grows with requests."
    return f"## Labels\n\n{note}\n\n{_table(('label', 'holds', 'values'), rows)}"


def _table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heading, ["---"] * len(heading), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
