"""The worker's gRPC face towards routers (the only user of their wire messages)."""

from outrider_worker.rpc.service import WorkerRpc

__all__ = ["WorkerRpc"]
