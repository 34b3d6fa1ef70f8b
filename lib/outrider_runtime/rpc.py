"""gRPC in one place: channels and servers whose settings fit each other.

Keepalive has to be paired: a client that pings more often than the server permits is cut off with
"too many pings". Both sides therefore come from the constants here. Every call carries the shared
token as metadata; a server that has one refuses calls without it.
"""

import hmac
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from outrider_runtime.settings import require_secret_beyond_loopback
from outrider_runtime.tls import TlsFiles

HEARTBEAT_INTERVAL_S = 1.0
HEARTBEAT_DEADLINE_S = 5.0
RECONNECT_CAP_S = 2.0
MAX_MESSAGE_BYTES = 16 * 1024 * 1024

_TOKEN_KEY = "authorization"
_CLIENT_PING_MS = 20_000
_CLIENT_PING_TIMEOUT_MS = 10_000
_SERVER_MIN_PING_MS = 10_000

_MESSAGE_OPTIONS = [
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
]
CHANNEL_OPTIONS: list[tuple[str, Any]] = [
    *_MESSAGE_OPTIONS,
    ("grpc.keepalive_time_ms", _CLIENT_PING_MS),
    ("grpc.keepalive_timeout_ms", _CLIENT_PING_TIMEOUT_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # The channel's own reconnect back-off stays below ours, so that a peer that is back is found.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", int(RECONNECT_CAP_S * 1000)),
    # A process has several channels to one address in tests; sharing hides disconnects.
    ("grpc.use_local_subchannel_pool", 1),
    # Services talk to each other directly; a proxy variable of the machine is not for them.
    ("grpc.enable_http_proxy", 0),
]
SERVER_OPTIONS: list[tuple[str, Any]] = [
    *_MESSAGE_OPTIONS,
    # The C macro is called MIN_RECV_PING_INTERVAL…, the option's string is not.
    ("grpc.http2.min_ping_interval_without_data_ms", _SERVER_MIN_PING_MS),
    ("grpc.http2.min_time_between_pings_ms", _SERVER_MIN_PING_MS),
    ("grpc.keepalive_time_ms", _CLIENT_PING_MS),
    ("grpc.keepalive_timeout_ms", _CLIENT_PING_TIMEOUT_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    # Two servers silently sharing one port would each get half of the traffic.
    ("grpc.so_reuseport", 0),
]


def token_metadata(token: str | None) -> tuple[tuple[str, str], ...]:
    """Metadata that authenticates a call; empty without a token."""
    return ((_TOKEN_KEY, f"Bearer {token}"),) if token else ()


def open_channel(target: str, tls: TlsFiles | None = None) -> grpc.aio.Channel:
    """An asyncio channel to `host:port`; calls pass `metadata=token_metadata(token)`.

    Raises:
        ConfigurationError: a file of `tls` cannot be read.
    """
    if tls is None:
        return grpc.aio.insecure_channel(target, options=CHANNEL_OPTIONS)
    options = [*CHANNEL_OPTIONS, *tls.channel_options()]
    return grpc.aio.secure_channel(target, tls.channel_credentials(), options=options)


@dataclass(frozen=True)
class RpcServer:
    """A running gRPC server with health and reflection."""

    server: grpc.aio.Server
    port: int
    health: health.aio.HealthServicer
    services: tuple[str, ...]

    async def set_serving(self, serving: bool) -> None:
        """Flip health for every service and for the server as a whole."""
        status = (
            health_pb2.HealthCheckResponse.SERVING
            if serving
            else health_pb2.HealthCheckResponse.NOT_SERVING
        )
        for service in ("", *self.services):
            await self.health.set(service, status)

    async def stop(self, grace_s: float) -> None:
        """Refuse new calls at once, cut what still runs after `grace_s`."""
        await self.server.stop(grace_s)


async def start_server(
    host: str,
    port: int,
    token: str | None,
    register: Callable[[grpc.aio.Server], None],
    services: Sequence[str],
    tls: TlsFiles | None = None,
) -> RpcServer:
    """Bind, add health and reflection, and serve; port 0 takes a free one.

    Health starts as NOT_SERVING: the service says itself when it is ready.

    Raises:
        ConfigurationError: beyond loopback without a token, or a file of `tls` cannot be read.
        OSError: the port is taken or the host is not one of this machine's.
    """
    require_secret_beyond_loopback(host, token, "OUTRIDER_TOKEN")
    interceptors = [_TokenInterceptor(token)] if token else []
    server = grpc.aio.server(interceptors=interceptors, options=SERVER_OPTIONS)
    register(server)
    servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    reflection.enable_server_reflection(
        (*services, health.SERVICE_NAME, reflection.SERVICE_NAME), server
    )
    try:
        bound = _bind(server, f"{host}:{port}", tls)
    except RuntimeError as error:
        raise OSError(f"cannot listen on {host}:{port}: is the port taken?") from error
    await server.start()
    running = RpcServer(server, bound, servicer, tuple(services))
    await running.set_serving(False)
    return running


def _bind(server: grpc.aio.Server, address: str, tls: TlsFiles | None) -> int:
    if tls is None:
        return server.add_insecure_port(address)
    return server.add_secure_port(address, tls.server_credentials())


class _TokenInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc, unused-ignore]
    """Refuses calls without the token, health checks excepted (probes carry none)."""

    def __init__(self, token: str) -> None:
        self._expected = f"Bearer {token}".encode()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        details: grpc.HandlerCallDetails,
    ) -> Any:
        if details.method.startswith("/grpc.health.v1.Health/") or self._carries_token(details):
            return await continuation(details)
        handler = await continuation(details)
        return _refusal_like(handler)

    def _carries_token(self, details: grpc.HandlerCallDetails) -> bool:
        given = dict(details.invocation_metadata or ()).get(_TOKEN_KEY, "")
        presented = given if isinstance(given, bytes) else given.encode()
        return hmac.compare_digest(presented, self._expected)


def _refusal_like(handler: Any) -> Any:
    """A handler of the same call type that ends every call with UNAUTHENTICATED."""
    text = "missing or wrong token"

    async def refuse(_request: Any, context: Any) -> Any:
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, text)

    if handler is None:
        return None
    if handler.request_streaming and handler.response_streaming:
        return grpc.stream_stream_rpc_method_handler(refuse)
    if handler.request_streaming:
        return grpc.stream_unary_rpc_method_handler(refuse)
    if handler.response_streaming:
        return grpc.unary_stream_rpc_method_handler(refuse)
    return grpc.unary_unary_rpc_method_handler(refuse)
