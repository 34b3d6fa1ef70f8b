"""The worker's side of the conversation with the planner (the only user of its wire messages)."""

from outrider_worker.planner_client.client import PlannerClient
from outrider_worker.planner_client.targets import PlannerTargets, parse_targets

__all__ = ["PlannerClient", "PlannerTargets", "parse_targets"]
