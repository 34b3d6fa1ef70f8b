"""The HTTP application: routes, error handlers and middleware around one router's state."""

from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from datetime import datetime
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from outrider_router.access.admission import Admission
from outrider_router.access.gate import Gate
from outrider_router.http_guard import HttpGuard
from outrider_router.metrics import RouterMetrics
from outrider_router.metrics_workers import WorkerSeries
from outrider_router.middleware import ApiKeys, RequestContext
from outrider_router.openai import models as model_objects
from outrider_router.openai import tokens
from outrider_router.openai.chat import ChatReader, ChatWriter
from outrider_router.openai.completions import CompletionReader, CompletionWriter
from outrider_router.openai.endpoint import GenerationEndpoint
from outrider_router.openai.errors import ApiError
from outrider_router.openai.prompts import served_model
from outrider_router.openai.schema import (
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    TokenizeBody,
)
from outrider_router.openai.transport import read_json
from outrider_router.routing.discovery import Discovery
from outrider_router.routing.policy import MostRoom, MoveLimits
from outrider_router.routing.registry import Registry
from outrider_router.settings import RouterSettings
from outrider_router.state import RouterState
from outrider_router.text.model_text import ModelText, TextAssets
from outrider_runtime import __version__
from outrider_runtime.clock import Clock, SystemClock
from outrider_runtime.metrics import METRICS_CONTENT_TYPE, new_registry, render


def build_state(settings: RouterSettings, clock: Clock | None = None) -> RouterState:
    """A router's parts, not started yet."""
    clock = clock or SystemClock()

    def build_text(assets: TextAssets) -> ModelText:
        return ModelText(assets, datetime.now, settings.control_tokens_in_content)

    series = new_registry()
    state = RouterState(
        settings=settings,
        clock=clock,
        registry=Registry(
            Discovery(settings.workers, clock),
            settings.token_text,
            clock,
            MostRoom(settings.affinity_slack),
            build_text,
            MoveLimits(settings.most_attempts, settings.resume_wait_s),
        ),
        gate=_gate(settings, clock),
        metrics=RouterMetrics(series),
        series=series,
        text_threads=ThreadPoolExecutor(settings.text_threads, "text"),
    )
    _export_load(state)
    return state


def _gate(settings: RouterSettings, clock: Clock) -> Gate:
    admission = Admission(
        settings.max_in_flight, settings.max_prompt_tokens_in_flight, settings.max_waiting
    )
    return Gate(settings.key_policies(), admission, clock, settings.wait_limit_s)


def _export_load(state: RouterState) -> None:
    state.metrics.watch_load(lambda: state.admission.choices, lambda: state.admission.waiting)
    state.series.register(WorkerSeries(state.registry))


def create_app(state: RouterState) -> FastAPI:
    """The application; its lifespan connects the workers and lets them go."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        state.registry.start()
        try:
            yield
        finally:
            await state.registry.stop()
            state.text_threads.shutdown(wait=False, cancel_futures=True)

    app = FastAPI(
        title="Outrider",
        version=__version__,
        lifespan=lifespan,
        # The pages that show the description load their scripts from elsewhere.
        docs_url=None,
        redoc_url=None,
    )
    _add_generation_routes(app, state)
    _add_token_routes(app, state)
    _add_model_routes(app, state)
    _add_operator_routes(app, state)
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(HTTPException, _http_error)
    # Added last, stands outermost: the id covers refusals for want of a key too.
    app.add_middleware(ApiKeys, gate=state.gate, clock=state.clock)
    app.add_middleware(
        HttpGuard,
        hosts=None if state.gate.needs_key else state.settings.http_names,
        max_header_bytes=state.settings.max_header_bytes,
        body_limit_s=state.settings.body_limit_s,
    )
    app.add_middleware(RequestContext, clock=state.clock)
    return app


def _add_generation_routes(app: FastAPI, state: RouterState) -> None:
    chat = GenerationEndpoint(state, ChatReader(), ChatWriter())
    completions = GenerationEndpoint(state, CompletionReader(), CompletionWriter())

    @app.post("/v1/chat/completions", openapi_extra=_takes(ChatBody))
    async def chat_completions(request: Request) -> Response:
        return await chat.answer(request)

    @app.post("/v1/completions", openapi_extra=_takes(CompletionBody))
    async def text_completions(request: Request) -> Response:
        return await completions.answer(request)


def _add_token_routes(app: FastAPI, state: RouterState) -> None:
    limit_bytes = state.settings.max_body_bytes

    @app.post("/tokenize", openapi_extra=_takes(TokenizeBody))
    async def tokenize(request: Request) -> Response:
        return JSONResponse(await tokens.tokenize(state, await read_json(request, limit_bytes)))

    @app.post("/detokenize", openapi_extra=_takes(DetokenizeBody))
    async def detokenize(request: Request) -> Response:
        return JSONResponse(await tokens.detokenize(state, await read_json(request, limit_bytes)))


def _add_model_routes(app: FastAPI, state: RouterState) -> None:
    @app.get("/v1/models")
    async def list_models() -> dict[str, Any]:
        return model_objects.model_list(state.registry.models())

    @app.get("/v1/models/{name:path}")
    async def one_model(name: str) -> dict[str, Any]:
        return model_objects.model_object(served_model(state.registry, name))


def _add_operator_routes(app: FastAPI, state: RouterState) -> None:
    @app.get("/health")
    async def health() -> dict[str, str]:
        """The process answers; whether it can serve is for `/ready` to say."""
        return {"status": "alive"}

    @app.get("/ready")
    async def ready() -> Response:
        trouble = state.trouble()
        if trouble is None:
            return JSONResponse({"status": "ready"})
        return JSONResponse({"status": "not ready", "reason": trouble}, 503)

    @app.get("/version")
    async def version() -> dict[str, str]:
        return {"version": __version__}

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(render(state.series), media_type=METRICS_CONTENT_TYPE)


def _takes(body: type[BaseModel]) -> dict[str, Any]:
    """The request body's schema for the API description; routes read the body themselves."""
    schema = body.model_json_schema()
    inlined = _inline(schema, schema.pop("$defs", {}))
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": inlined}}}}


def _inline(schema: Any, definitions: Mapping[str, Any]) -> Any:
    """The schema with references replaced by what they name."""
    if isinstance(schema, list):
        return [_inline(item, definitions) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _inline(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    return {key: _inline(value, definitions) for key, value in schema.items()}


async def _api_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return JSONResponse(error.body(), error.status, headers=dict(error.headers()))


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    phrase = HTTPStatus(error.status_code).phrase
    shown = ApiError(error.status_code, f"{phrase}: {request.method} {request.url.path}")
    headers: Mapping[str, str] = error.headers or {}
    return JSONResponse(shown.body(), shown.status, headers={**shown.headers(), **headers})
