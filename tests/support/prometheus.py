"""A real Prometheus on a free port, with the rules of `deploy`, that scrapes often."""

import json
import math
import urllib.parse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.support.net import LOOPBACK, free_ports, http_get
from tests.support.processes import Process
from tests.support.questions import ROOT, RULES

CONFIGURATION = ROOT / "deploy/prometheus/prometheus.yml"
_READY_LIMIT_S = 60.0


@dataclass(frozen=True)
class Value:
    """One series of an answer."""

    labels: Mapping[str, str]
    value: float


class Prometheus(Process):
    """Scrapes each job's ports on loopback; the jobs are those of `deploy`'s configuration.

    Args:
        program: the path of `prometheus`.
        folder: an empty one, for its configuration and data.
        ports: by job.
    """

    def __init__(
        self, program: str, folder: Path, ports: Mapping[str, Sequence[int]], interval_s: int = 1
    ) -> None:
        (self.port,) = free_ports(1)
        path = folder / "prometheus.yml"
        path.write_text(yaml.safe_dump(_configuration(ports, interval_s)))
        super().__init__(
            [
                program,
                f"--config.file={path}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address={LOOPBACK}:{self.port}",
            ]
        )

    def start(self) -> None:
        """Start and wait until it answers."""
        super().start()
        self.wait_ready(
            lambda: http_get(self.port, "/-/ready")[0] == 200, _READY_LIMIT_S, "a ready Prometheus"
        )

    def ask(self, expr: str) -> list[Value]:
        """The expression's value now; AssertionError where Prometheus refuses it."""
        found = self._get("query", query=expr)["result"]
        if found and not isinstance(found[0], dict):  # a scalar: time and value
            return [Value({}, float(found[1]))]
        return [Value(each["metric"], float(each["value"][1])) for each in found]

    def rules(self) -> list[Mapping[str, Any]]:
        """Every rule with its state, health and last error."""
        groups = self._get("rules")["groups"]
        return [rule for group in groups for rule in group["rules"]]

    def up(self) -> Mapping[str, float]:
        """By job, the least of its targets; a job that was not scraped yet is absent."""
        return {each.labels["job"]: each.value for each in self.ask("min by (job) (up)")}

    def _get(self, what: str, **parameters: str) -> Any:
        path = f"/api/v1/{what}?{urllib.parse.urlencode(parameters)}"
        _, body = http_get(self.port, path, limit_s=30.0)
        answer = json.loads(body)
        assert answer["status"] == "success", f"{parameters}: {answer}"
        return answer["data"]


def finite(values: Sequence[Value]) -> bool:
    """Whether there is an answer, and nothing in it is NaN or infinite."""
    return bool(values) and all(math.isfinite(each.value) for each in values)


def _configuration(ports: Mapping[str, Sequence[int]], interval_s: int) -> Mapping[str, Any]:
    configuration: dict[str, Any] = yaml.safe_load(CONFIGURATION.read_text())
    every = f"{interval_s}s"
    configuration["global"] = {"scrape_interval": every, "evaluation_interval": every}
    configuration["rule_files"] = [str(path) for path in RULES]
    configuration["scrape_configs"] = [
        {
            "job_name": job["job_name"],
            "static_configs": [
                {"targets": [f"{LOOPBACK}:{port}" for port in ports[job["job_name"]]]}
            ],
        }
        for job in configuration["scrape_configs"]
    ]
    return configuration
