"""The wire: protobuf to domain values and back, and the servicer of the Plan stream.

The only package of the planner that knows generated code.
"""

from outrider_planner.rpc.codec import WireError
from outrider_planner.rpc.servicer import SERVICE_NAME, PlannerServicer

__all__ = ["SERVICE_NAME", "PlannerServicer", "WireError"]
