"""Servers and channels over real sockets: token, health, reflection, ports, keepalive (F05)."""

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from outrider_runtime.rpc import (
    CHANNEL_OPTIONS,
    SERVER_OPTIONS,
    RpcServer,
    open_channel,
    start_server,
    token_metadata,
)
from outrider_runtime.settings import ConfigurationError

SERVICE = "outrider.planner.v1.PlannerService"
ECHO = "outrider.test.Echo"
FLOOR = "grpc.http2.min_ping_interval_without_data_ms"
SCALE = 20  # gRPC pings once a second at most, whatever it is told
SILENT_S = 7.0  # the fourth or fifth ping is one too many for a server without the floor
KINDS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")


def register_echo(server: grpc.aio.Server) -> None:
    """A service of all four call types that sends back what it gets."""

    async def one(request: bytes, _context: object) -> bytes:
        return request

    async def many(request: bytes, _context: object) -> AsyncIterator[bytes]:
        yield request

    async def joined(requests: AsyncIterator[bytes], _context: object) -> bytes:
        return b"".join([request async for request in requests])

    async def each(requests: AsyncIterator[bytes], _context: object) -> AsyncIterator[bytes]:
        async for request in requests:
            yield request

    handlers: dict[str, Any] = {
        "unary_unary": grpc.unary_unary_rpc_method_handler(one),
        "unary_stream": grpc.unary_stream_rpc_method_handler(many),
        "stream_unary": grpc.stream_unary_rpc_method_handler(joined),
        "stream_stream": grpc.stream_stream_rpc_method_handler(each),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(ECHO, handlers),))


@asynccontextmanager
async def serving(token: str | None = None) -> AsyncIterator[tuple[RpcServer, grpc.aio.Channel]]:
    server = await start_server("127.0.0.1", 0, token, register_echo, (SERVICE,))
    try:
        async with open_channel(f"127.0.0.1:{server.port}") as channel:
            yield server, channel
    finally:
        await server.stop(0)


def calls(channel: grpc.aio.Channel, kind: str, method: str) -> Any:
    """What makes calls of the kind to the method, in raw bytes."""
    return getattr(channel, kind)(f"/{ECHO}/{method}")


async def echo(
    channel: grpc.aio.Channel, kind: str, token: str | None, words: Sequence[bytes] = (b"word",)
) -> bytes:
    """One call of the kind; the answer's bytes. A stream sends `words`."""

    async def requests() -> AsyncIterator[bytes]:
        for word in words:
            yield word

    argument = requests() if kind.startswith("stream") else b"word"
    call = calls(channel, kind, kind)(argument, metadata=token_metadata(token), timeout=5)
    if kind.endswith("stream"):
        return b"".join([answer async for answer in call])
    answer: bytes = await call
    return answer


@pytest.mark.parametrize("kind", KINDS)
async def test_calls_of_every_kind_pass_with_the_token_only(kind: str) -> None:
    async with serving("hush") as (_, channel):
        assert await echo(channel, kind, "hush") == b"word"
        for wrong in (None, "hus", "hush2", "HUSH"):
            # Nothing is sent: a stream may be refused before its first word is written, and that
            # write would fail with a status of the client's own.
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await echo(channel, kind, wrong, words=())
            assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize("kind", KINDS)
async def test_without_a_token_calls_of_every_kind_pass(kind: str) -> None:
    async with serving() as (_, channel):
        assert await echo(channel, kind, None) == b"word"


async def test_an_unknown_method_is_unimplemented_also_without_the_token() -> None:
    async with serving("hush") as (_, channel):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await calls(channel, "unary_unary", "nothing")(b"", timeout=5)
    assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED


async def test_health_needs_no_token_and_flips() -> None:
    async with serving("hush") as (server, channel):
        stub = health_pb2_grpc.HealthStub(channel)

        async def status(service: str) -> int:
            request = health_pb2.HealthCheckRequest(service=service)
            answer = await stub.Check(request, timeout=5)
            return int(answer.status)

        states = health_pb2.HealthCheckResponse
        assert [await status(""), await status(SERVICE)] == [states.NOT_SERVING] * 2
        await server.set_serving(True)
        assert [await status(""), await status(SERVICE)] == [states.SERVING] * 2
        await server.set_serving(False)
        assert [await status(""), await status(SERVICE)] == [states.NOT_SERVING] * 2


async def test_reflection_lists_the_services_to_those_with_the_token() -> None:
    async with serving("hush") as (_, channel):
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        call = stub.ServerReflectionInfo(iter([request]), metadata=token_metadata("hush"))
        names = [
            each.name async for answer in call for each in answer.list_services_response.service
        ]
        assert SERVICE in names
        assert "grpc.health.v1.Health" in names


async def test_a_taken_port_is_an_os_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"127.0.0.1:{port}"):
            await start_server("127.0.0.1", port, None, register_echo, ())


async def test_two_servers_never_share_a_port() -> None:
    async with serving() as (server, _):
        with pytest.raises(OSError, match="is the port taken"):
            await start_server("127.0.0.1", server.port, None, register_echo, ())


async def test_beyond_loopback_only_with_a_token() -> None:
    with pytest.raises(ConfigurationError, match="OUTRIDER_TOKEN"):
        await start_server("0.0.0.0", 0, None, register_echo, ())


def scaled(options: list[tuple[str, Any]], divisor: int) -> list[tuple[str, Any]]:
    """The same options with every time divided, so that minutes pass in a second or two."""
    return [
        (name, max(1, value // divisor) if name.endswith("_ms") else value)
        for name, value in options
    ]


async def silent_stream(server_options: list[tuple[str, Any]], silent_s: float) -> bytes:
    """Open a stream, stay silent while the client pings every second, then use it again."""
    server = grpc.aio.server(options=server_options)
    register_echo(server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    options = scaled(CHANNEL_OPTIONS, SCALE)
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
            call = calls(channel, "stream_stream", "stream_stream")()
            await call.write(b"before")
            first: bytes = await call.read()
            answer = asyncio.ensure_future(call.read())
            await asyncio.wait({answer}, timeout=silent_s)
            if not answer.done():
                await call.write(b" after")
            second: bytes = await answer
            await call.done_writing()
            return first + second
    finally:
        await server.stop(0)


async def test_paired_keepalive_survives_silence_and_unpaired_does_not() -> None:
    """Ours lives; a server's defaults cut it, and so do ours without the floor under pings.

    The last two show that the experiment can fail, and that the option which counts is the one
    with the unexpected name: misspelt options are ignored without a word.
    """
    paired = scaled(SERVER_OPTIONS, SCALE)
    floorless = [option for option in paired if option[0] != FLOOR]
    ours, defaults, unpaired = await asyncio.gather(
        *(silent_stream(options, SILENT_S) for options in (paired, [], floorless)),
        return_exceptions=True,
    )
    assert ours == b"before after"
    for cut in (defaults, unpaired):
        assert isinstance(cut, grpc.aio.AioRpcError), cut
        assert cut.code() == grpc.StatusCode.UNAVAILABLE
        assert "too many pings" in (cut.details() or "").lower()


def test_pings_are_slower_than_the_floor_permits() -> None:
    client, server = dict(CHANNEL_OPTIONS), dict(SERVER_OPTIONS)
    assert client["grpc.keepalive_time_ms"] >= 2 * server[FLOOR]
