"""Questions a supervisor asks from outside: is a port free, does a service answer?"""

import asyncio
import http.client
import socket
import ssl
from collections.abc import Iterable

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client.parser import text_string_to_metric_families

from outrider_cli.errors import CommandError
from outrider_cli.stack import ChildSpec, Port
from outrider_runtime.rpc import open_channel
from outrider_runtime.tls import TlsFiles

PROBE_LIMIT_S = 2.0


def require_free_ports(children: Iterable[ChildSpec]) -> None:
    """Raise `CommandError` naming every port that is taken, or asked for twice."""
    seen: dict[int, str] = {}
    for child in children:
        for port in child.ports.values():
            if port.number in seen:
                raise CommandError(
                    f"port {port.number} is asked for twice, by {seen[port.number]} and "
                    f"{child.name}: move one with {port.flag}"
                )
            seen[port.number] = child.name
            if not is_free(port):
                raise CommandError(
                    f"port {port.number} ({child.name}) is taken: stop what listens there or "
                    f"choose another with {port.flag}"
                )


def is_free(port: Port) -> bool:
    """True where a server could listen now."""
    family = socket.AF_INET6 if ":" in port.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((port.host, port.number))
            probe.listen(1)
        except OSError:
            return False
    return True


async def http_ok(port: Port, path: str) -> bool:
    """True where `GET path` answers 200."""
    return (await http_get(port, path))[0] == 200


async def http_get(port: Port, path: str) -> tuple[int, bytes]:
    """Status and body; status 0 where nobody answers."""
    return await asyncio.to_thread(_get, port, path)


def label_of(series: str, name: str, label: str) -> str | None:
    """A label of the series of that name in a page of metrics; None where there is none."""
    families = text_string_to_metric_families(series)
    samples = (sample for family in families for sample in family.samples)
    return next((sample.labels[label] for sample in samples if sample.name == name), None)


def reachable(host: str) -> str:
    """An address to call a server at that listens on `host` (all interfaces → loopback)."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)


def _get(port: Port, path: str) -> tuple[int, bytes]:
    connection = _connection(reachable(port.host), port)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()
    except (OSError, http.client.HTTPException):
        return 0, b""
    finally:
        connection.close()


def _connection(host: str, port: Port) -> http.client.HTTPConnection:
    if not port.tls:
        return http.client.HTTPConnection(host, port.number, timeout=PROBE_LIMIT_S)
    # A child of ours, asked by its address, which its certificate need not name; it gets no secret.
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return http.client.HTTPSConnection(host, port.number, timeout=PROBE_LIMIT_S, context=context)


async def grpc_serving(port: Port, tls: TlsFiles | None = None) -> bool:
    """True where the standard health service says SERVING for the server as a whole."""
    async with open_channel(f"{port.host}:{port.number}", tls) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=PROBE_LIMIT_S)
        except grpc.aio.AioRpcError:
            return False
    serving: bool = answer.status == health_pb2.HealthCheckResponse.SERVING
    return serving
