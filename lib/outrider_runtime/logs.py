"""Structured logs: one configuration for structlog and for the libraries that log by themselves.

Every line carries the service's name and, inside a request, its id (`bind_request`).
"""

import asyncio
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import structlog


def configure_logs(service: str, level: str = "info", log_format: str = "json") -> None:
    """Send all logs of the process to stderr, as JSON lines or coloured text."""

    def add_service(_logger: Any, _method: str, event: dict[str, Any]) -> dict[str, Any]:
        # Not a context variable: lines of other threads carry the name as well.
        return {"service": service, **event}

    shared: list[Any] = [
        add_service,
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderer: Any = (
        structlog.processors.JSONRenderer()
        if log_format == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    structlog.configure(
        processors=[
            # First: a line that is not wanted costs nothing more.
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                renderer,
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.getLogger("grpc._cython.cygrpc").addFilter(_is_no_cancellation)
    for noisy in ("uvicorn.access", "httpx", "httpx2", "asyncio"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def _is_no_cancellation(record: logging.LogRecord) -> bool:
    """gRPC takes calls that a stopping server cancels for failures; they would bury real ones."""
    return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """A logger for one module."""
    logger: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(name)
    return logger


@contextmanager
def bind_request(request_id: str) -> Iterator[None]:
    """All lines logged inside carry `request_id`, also in tasks started from here."""
    with structlog.contextvars.bound_contextvars(request_id=request_id):
        yield
