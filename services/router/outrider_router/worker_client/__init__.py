"""The router's side of the worker contract; generated code stays inside this package."""

from outrider_router.worker_client.client import Fetch, WorkerClient

__all__ = ["Fetch", "WorkerClient"]
