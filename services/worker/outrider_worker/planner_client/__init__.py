"""The worker's side of the conversation with the planner (the only user of its wire messages)."""

from outrider_worker.planner_client.client import PlannerClient

__all__ = ["PlannerClient"]
