"""The life of a generation request over HTTP, the same for both endpoints.

Errors up to the first token are real statuses: the worker's first news are awaited before an
answer begins. A client that goes, at whatever point, stops its request on the worker.
"""

from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any, Generic

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from outrider_router.access.admission import ShuttingDown
from outrider_router.access.tenant import Overloaded, Tenant
from outrider_router.generation import GenerationFailed, generating
from outrider_router.metrics import RequestRecord
from outrider_router.openai.answer import AnswerWriter
from outrider_router.openai.dialect import Encoded, Prompt, Reader, Writer
from outrider_router.openai.errors import (
    ApiError,
    FieldNames,
    invalid,
    of_failure,
    overloaded,
    shutting_down,
)
from outrider_router.openai.fields import ignored_fields
from outrider_router.openai.order import Asked, frame_of, order_of
from outrider_router.openai.params import Offer, Wishes, echoes, wishes_of
from outrider_router.openai.prediction import encode_prediction
from outrider_router.openai.prompts import (
    encode_bad_words,
    encode_prompt,
    served_model,
    with_texts,
)
from outrider_router.openai.report import report_level
from outrider_router.openai.schema import GenerationBody
from outrider_router.openai.stream import EventStream, StreamLimits
from outrider_router.openai.transport import ClientGone, read_json, until_disconnect
from outrider_router.routing.registry import NoWorker, ServedModel
from outrider_router.state import RouterState
from outrider_router.tracing import RequestTrace

_CLIENT_CLOSED_REQUEST = 499


class GenerationEndpoint(Generic[Prompt]):
    """Answers generation requests of one kind."""

    def __init__(self, state: RouterState, reader: Reader[Prompt], writer: Writer) -> None:
        self._state = state
        self._reader = reader
        self._writer = writer

    async def answer(self, request: Request) -> Response:
        """The response to one request, which gets exactly one outcome.

        Raises:
            ApiError: anything but success, before the first token.
        """
        record = RequestRecord(
            self._state.metrics,
            self._state.clock,
            self._reader.endpoint,
            trace=RequestTrace(
                self._state.tracer, self._reader.endpoint, request.headers.get("traceparent", "")
            ),
        )
        try:
            value = await read_json(request, self._state.settings)
            work = self._respond(value, request, request.state.tenant, record)
            return await until_disconnect(request.receive, work)
        except (ClientGone, ClientDisconnect):
            record.end("cancelled")
            return Response(status_code=_CLIENT_CLOSED_REQUEST)
        except ApiError as error:
            record.end(error.outcome)
            raise
        except BaseException:
            record.end("error")
            raise

    async def _respond(
        self, value: Any, request: Request, tenant: Tenant, record: RequestRecord
    ) -> Response:
        if self._state.draining:
            raise shutting_down()
        body, sources = self._reader.parse(value)
        record.ignored(ignored_fields(body))
        model = served_model(self._state.registry, body.model)
        offer = Offer(model.options, model.vocab_size)
        wishes = wishes_of(body, offer, model.text, self._state.settings.caps)
        level = report_level(request.headers, self._state.settings.speculation_report)
        names = FieldNames(self._reader.prompt_param)
        async with AsyncExitStack() as stack:
            try:
                choices = self._choices(wishes.choices, len(sources), tenant)
                place = await stack.enter_async_context(
                    self._state.gate.visit(tenant, choices, wishes.priority, record)
                )
                asked = await self._read(body, model, wishes, sources, request.state.request_id)
                names = asked.names(self._reader.prompt_param)
                order = order_of(asked, self._state.settings.request_limit_s)
                order = replace(order, submissions=tuple(map(tenant.stamp, order.submissions)))
                place.charge_prompt(order.prompt_tokens + len(asked.prediction))
                generation = await stack.enter_async_context(
                    generating(self._state.registry, order, record)
                )
                frame = frame_of(asked, self._writer, self._state.clock.wall_s(), level)
                answer = AnswerWriter(generation, order, frame, record, names, level)
                if not body.stream:
                    return JSONResponse(await answer.whole())
                events = answer.events(body.stream_interval or 1)
                return EventStream(events, stack.pop_all(), record, self._stream_limits())
            except Overloaded as error:
                raise overloaded(error) from error
            except ShuttingDown as error:
                raise shutting_down() from error
            except NoWorker as error:
                raise ApiError(503, str(error)) from error
            except GenerationFailed as error:
                delivered = record.completion_tokens > 0
                raise of_failure(error.failure, names, delivered) from error

    async def _read(
        self,
        body: GenerationBody,
        model: ServedModel,
        wishes: Wishes,
        sources: Sequence[Prompt],
        request_id: str,
    ) -> Asked:
        """Turn the request's texts into tokens, off the event loop."""
        state, reader = self._state, self._reader
        keep = _kept_tokens(wishes, model)
        prompts: Sequence[Encoded] = [
            await encode_prompt(state, model, reader, source, keep) for source in sources
        ]
        if echoes(body):
            prompts = await with_texts(state, model, prompts)
        bad_words = await encode_bad_words(state, model, wishes.bad_words)
        prediction = await encode_prediction(state, model, wishes.prediction)
        return Asked(body, model, wishes, prompts, bad_words, prediction, request_id)

    def _choices(self, choices: int, prompts: int, tenant: Tenant) -> int:
        """Places that the request takes; more than it could ever have is no matter of waiting."""
        state = self._state
        limit = min(state.settings.max_choices, state.gate.most_choices(tenant))
        if choices * prompts > limit:
            param = "n" if choices > limit else self._reader.prompt_param
            asked = f"{prompts} prompts with {choices} each" if prompts > 1 else str(choices)
            raise invalid(f"at most {limit} choices per request are offered, not {asked}", param)
        return choices * prompts

    def _stream_limits(self) -> StreamLimits:
        settings = self._state.settings
        return StreamLimits(settings.write_limit_s, settings.ping_interval_s)


def _kept_tokens(wishes: Wishes, model: ServedModel) -> int | None:
    """Tokens of a prompt's end to keep, None for all; -1 asks for what leaves room to answer."""
    if wishes.keep_prompt_tokens != -1:
        return wishes.keep_prompt_tokens
    return max(model.context_tokens - (wishes.max_tokens or 1), 1)
