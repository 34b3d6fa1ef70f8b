"""Names, units, texts and labels of what the services export keep Prometheus' rules."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.generate.exported import Exported, exported_metrics
from deploy.generate.metrics import LABELS, metrics_reference, unit

# Two spellings of one quantity, or what is not a base unit: none of it may end a name.
NOT_UNITS = {
    *("ms", "us", "milliseconds", "microseconds", "minutes", "sec", "s", "duration", "latency"),
    *("percent", "perc", "percentage", "kb", "mb", "mib", "gib", "kilobytes", "tok", "count"),
}


def own() -> Iterator[tuple[str, Exported]]:
    """By service, without the other names."""
    for service, metrics in exported_metrics().items():
        if service != "vllm":
            yield from ((service, metric) for metric in metrics)


def faults(service: str, metric: Exported) -> Iterator[str]:
    stem = metric.name.removesuffix("_total")
    if not re.fullmatch(rf"outrider_{service}(_[a-z0-9]+)+", metric.name):
        yield "not in small letters behind the service's name; colons are for recorded series"
    if (metric.kind == "counter") != metric.name.endswith("_total"):
        yield "counters end in _total, and nothing else does"
    if stem.rpartition("_")[2] in NOT_UNITS:
        yield "ends in no base unit"
    if {"seconds", "ratio"} & set(stem.split("_")) and not unit(metric.name):
        yield "its unit is not where it is looked for"
    if not re.fullmatch(r"[A-Z0-9].*\.", metric.text):
        yield "its text is not a sentence"
    if set(metric.labels) & {"le", "quantile", "job", "instance"} or metric.name in metric.labels:
        yield "a label is reserved"
    if unknown := set(metric.labels) - LABELS.keys():
        yield f"labels of unknown bounds: {unknown}"


def test_names_keep_the_rules() -> None:
    found = {each.name: list(faults(service, each)) for service, each in own()}
    assert len(found) > 90
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


@pytest.mark.parametrize(
    ("name", "kind", "labels", "text"),
    [
        ("outrider_router_waits", "counter", (), "Waits."),
        ("outrider_router_waits_total", "gauge", (), "Waits."),
        ("outrider_router_wait_ms", "gauge", (), "Waits."),
        ("outrider_router_seconds_waited", "gauge", (), "Waits."),
        ("outrider_router_waits_total", "counter", ("user",), "Waits."),
        ("outrider_router_waits_total", "counter", (), ""),
        ("outrider:waits_total", "counter", (), "Waits."),
    ],
)
def test_a_bad_name_would_be_found(
    name: str, kind: str, labels: tuple[str, ...], text: str
) -> None:
    assert list(faults("router", Exported(name, kind, labels, text)))


def test_no_name_stands_for_two_things_or_begins_with_another_counter() -> None:
    """G05: what is summed by a pattern behind a counter's name is that counter."""
    names = [series for _, metric in own() for series in metric.series]
    assert len(names) == len(set(names))
    counters = {name for name in names if name.endswith("_total")}
    longer = [(one, name) for one in counters for name in names if name.startswith(f"{one}_")]
    assert longer == []


def test_the_reference_names_every_metric_and_label() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs/metrics.md").read_text()
    for metrics in exported_metrics().values():
        for metric in metrics:
            assert f"| `{metric.name}` | {metric.kind} |" in text
            assert all(f"\n| `{label}` | " in text for label in metric.labels)


def test_a_label_that_nobody_described_stops_the_reference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(LABELS, "drafter")
    with pytest.raises(ValueError, match="drafter"):
        metrics_reference([])
