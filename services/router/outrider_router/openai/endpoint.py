"""The life of a generation request over HTTP, the same for both endpoints.

Errors up to the first token are real statuses: the worker's first news are awaited before an
answer begins. A client that goes, at whatever point, stops its request on the worker.
"""

import itertools
import secrets
from contextlib import AsyncExitStack
from typing import Any, Generic

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from outrider_router.admission import Overloaded, Place
from outrider_router.generation import GenerationFailed, Order, generating
from outrider_router.metrics import RequestRecord
from outrider_router.openai.answer import AnswerWriter
from outrider_router.openai.dialect import Frame, Prompt, Reader, Writer
from outrider_router.openai.errors import ApiError, invalid, of_failure
from outrider_router.openai.params import Wishes, ignored_fields, wishes_of
from outrider_router.openai.prediction import encode_prediction
from outrider_router.openai.prompts import encode_prompt, served_model
from outrider_router.openai.schema import GenerationBody
from outrider_router.openai.stream import EventStream
from outrider_router.openai.transport import ClientGone, read_json, until_disconnect
from outrider_router.routing.registry import NoWorker, ServedModel
from outrider_router.state import RouterState, fingerprint
from outrider_router.types import Submission

_CLIENT_CLOSED_REQUEST = 499
_sequence = itertools.count(1)


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
        record = RequestRecord(self._state.metrics, self._state.clock, self._reader.endpoint)
        try:
            value = await read_json(request, self._state.settings.max_body_bytes)
            work = self._respond(value, request.state.request_id, record)
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

    async def _respond(self, value: Any, request_id: str, record: RequestRecord) -> Response:
        if self._state.draining:
            raise ApiError(503, "the router is shutting down")
        body, sources = self._reader.parse(value)
        record.ignored(ignored_fields(body))
        model = served_model(self._state.registry, body.model)
        wishes = wishes_of(body, model.options, model.vocab_size)
        async with AsyncExitStack() as stack:
            try:
                place = stack.enter_context(self._admit(wishes.choices, len(sources)))
                prompts = [await self._encode(model, source) for source in sources]
                place.charge_prompt(sum(map(len, prompts)))
                record.prompt_tokens = sum(map(len, prompts))
                prediction = await encode_prediction(self._state, model, wishes.prediction)
                place.charge_prompt(len(prediction))
                order = self._order(model, wishes, prompts, prediction, request_id)
                generation = await stack.enter_async_context(
                    generating(self._state.registry, order, record)
                )
                frame = self._frame(model, body)
                answer = AnswerWriter(generation, order, frame, record, self._reader.prompt_param)
                if not body.stream:
                    return JSONResponse(await answer.whole())
                limit_s = self._state.settings.write_limit_s
                return EventStream(answer.events(), stack.pop_all(), record, limit_s)
            except Overloaded as error:
                raise ApiError(429, str(error)) from error
            except NoWorker as error:
                raise ApiError(503, str(error)) from error
            except GenerationFailed as error:
                delivered = record.completion_tokens > 0
                raise of_failure(error.failure, self._reader.prompt_param, delivered) from error

    def _admit(self, choices: int, prompts: int) -> Place:
        limit = self._state.settings.max_choices
        if choices * prompts > limit:
            param = "n" if choices > limit else self._reader.prompt_param
            asked = f"{prompts} prompts with {choices} each" if prompts > 1 else str(choices)
            raise invalid(f"at most {limit} choices per request are offered, not {asked}", param)
        return self._state.admission.admit(choices * prompts)

    async def _encode(self, model: ServedModel, source: Prompt) -> list[int]:
        return await encode_prompt(self._state, model, self._reader, source)

    def _order(
        self,
        model: ServedModel,
        wishes: Wishes,
        prompts: list[list[int]],
        prediction: tuple[int, ...],
        request_id: str,
    ) -> Order:
        """One submission per choice; the seed is always set, so that a retry repeats the text."""
        submissions = []
        for prompt in prompts:
            # Choices of one prompt differ by their index; equal prompts only by their seed.
            seed = secrets.randbits(64) if wishes.seed is None else wishes.seed
            # Clients may repeat a request id; the worker must not see one twice.
            unique_id = f"{request_id}.{next(_sequence)}"
            sampling = wishes.sampling(model.context_tokens - len(prompt))
            submissions += [
                Submission(
                    request_id=unique_id,
                    choice_index=choice,
                    prompt_ids=tuple(prompt),
                    seed=seed,
                    sampling=sampling,
                    speculation=wishes.speculation,
                    prediction_ids=prediction,
                )
                for choice in range(wishes.choices)
            ]
        limit_s = self._state.settings.request_limit_s
        return Order(model, tuple(submissions), wishes.stops, limit_s)

    def _frame(self, model: ServedModel, body: GenerationBody) -> Frame:
        asked_tier = (body.model_extra or {}).get("service_tier")
        return Frame(
            writer=self._writer,
            answer_id=self._writer.id_prefix + secrets.token_hex(12),
            created_s=int(self._state.clock.wall_s()),
            model=model.name,
            fingerprint=fingerprint(model),
            service_tier="default" if asked_tier else None,
            with_usage=body.wants_usage_chunk,
            with_token_ids=bool(body.return_token_ids),
        )
