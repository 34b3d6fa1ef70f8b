"""`python -m deploy.generate` writes the files; `--check` says which are out of date (status 1)."""

import json
import sys
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import yaml

from deploy.generate.fleet import fleet
from deploy.generate.metrics import metrics_reference
from deploy.generate.service import service
from deploy.generate.speculation import speculation

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
RULES = ("recording", "alerts")


def files() -> Mapping[Path, str]:
    """What every generated file should hold."""
    dashboards = {"service": service(), "speculation": speculation(), "fleet": fleet()}
    written = {
        DEPLOY / "grafana" / "dashboards" / f"{name}.json": json.dumps(board, indent=1) + "\n"
        for name, board in dashboards.items()
    }
    groups = rule_groups()
    rules = chain.from_iterable(group["rules"] for group in groups)
    return {
        **written,
        DEPLOY / "prometheus" / "prometheus-rule.yaml": prometheus_rule(groups),
        ROOT / "docs" / "metrics.md": metrics_reference(rules),
    }


def rule_groups() -> list[dict[str, Any]]:
    """Prometheus' rules, recording ones first."""
    paths = (DEPLOY / "prometheus" / "rules" / f"{name}.yml" for name in RULES)
    return [group for path in paths for group in yaml.safe_load(path.read_text())["groups"]]


def prometheus_rule(groups: list[dict[str, Any]]) -> str:
    """All rules as the object that Prometheus' operator for Kubernetes reads."""
    rule = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "outrider"},
        "spec": {"groups": groups},
    }
    heading = "# Made from rules/*.yml by `python -m deploy.generate`.\n"
    text: str = yaml.safe_dump(rule, sort_keys=False, allow_unicode=True, width=100)
    return heading + text


def outdated() -> list[str]:
    """Files that are missing or differ."""
    return [
        str(path.relative_to(ROOT))
        for path, text in files().items()
        if not path.exists() or path.read_text() != text
    ]


def main(arguments: list[str]) -> int:
    """Exit status."""
    if arguments == ["--check"]:
        for name in outdated():
            print(f"{name} is out of date: run python -m deploy.generate", file=sys.stderr)
        return 1 if outdated() else 0
    for path, text in files().items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
