"""The HTTP application: routes, error handlers and middleware around one router's state."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from datetime import datetime
from http import HTTPStatus
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
from fastapi.routing import APIRoute
from prometheus_client import CollectorRegistry
from starlette.exceptions import HTTPException

from outrider_router.access.admission import Admission
from outrider_router.access.gate import Gate
from outrider_router.access.key_watch import KeyWatch
from outrider_router.description import ANSWERS, generated, gives, page, takes
from outrider_router.http_guard import HttpGuard
from outrider_router.metrics import RouterMetrics
from outrider_router.metrics_alias import VllmAlias
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
from outrider_router.page import add_chat_page
from outrider_router.routing.discovery import Discovery
from outrider_router.routing.policy import MostRoom, MoveLimits
from outrider_router.routing.registry import Registry
from outrider_router.settings import RouterSettings
from outrider_router.state import RouterState
from outrider_router.text.model_text import ModelText, TextAssets
from outrider_runtime import __version__
from outrider_runtime.clock import Clock, SystemClock
from outrider_runtime.metrics import METRICS_CONTENT_TYPE, new_registry, render
from outrider_runtime.supervision import keep_going
from outrider_runtime.tls import tls_files
from outrider_runtime.tracing import tracer_for

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


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
            tls_files(settings),
        ),
        gate=_gate(settings, clock),
        metrics=RouterMetrics(series),
        series=series,
        text_threads=ThreadPoolExecutor(settings.text_threads, "text"),
        tracer=tracer_for("router", settings),
    )
    _export_load(state)
    return state


def _gate(settings: RouterSettings, clock: Clock) -> Gate:
    admission = Admission(
        settings.max_in_flight,
        settings.max_prompt_tokens_in_flight,
        settings.max_waiting,
        divided=settings.needs_key,
    )
    policies = settings.key_policies()
    return Gate(policies, settings.needs_key, admission, clock, settings.wait_limit_s)


def _watch_keys(state: RouterState) -> asyncio.Task[None] | None:
    """Follow the file of keys; None without one."""
    settings = state.settings
    if settings.api_keys_file is None:
        return None
    watch = KeyWatch(settings.api_keys_file, settings.key_policies, state.gate, state.clock)
    return keep_going("key_watch", watch.run, state.clock)


def _export_load(state: RouterState) -> None:
    state.metrics.watch_load(lambda: state.admission.choices, lambda: state.admission.waiting)
    state.series.register(WorkerSeries(state.registry))


def create_app(state: RouterState) -> FastAPI:
    """The application; its lifespan connects the workers and lets them go."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        state.registry.start()
        watching = _watch_keys(state)
        try:
            yield
        finally:
            if watching is not None:
                watching.cancel()
            await state.registry.stop()
            await asyncio.to_thread(state.tracer.close)
            for threads in (state.text_threads, state.long_texts):
                threads.shutdown(wait=False, cancel_futures=True)

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
    if state.settings.chat_page:
        add_chat_page(app)
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


class _DirectRoute(APIRoute):
    """A route whose function takes the request as it is: nothing is worked out before it."""

    def get_route_handler(self) -> Handler:
        """The function itself."""
        handler: Handler = self.endpoint
        return handler


def _add_generation_routes(app: FastAPI, state: RouterState) -> None:
    caps = state.settings.caps
    chat = GenerationEndpoint(state, ChatReader(caps), ChatWriter())
    completions = GenerationEndpoint(state, CompletionReader(caps), CompletionWriter())

    router = APIRouter(route_class=_DirectRoute)

    @router.post(
        "/v1/chat/completions",
        openapi_extra=takes(ChatBody),
        responses=gives(generated("chat.completion"), streams=True),
    )
    async def chat_completions(request: Request) -> Response:
        """An assistant's message, whole or as a stream."""
        return await chat.answer(request)

    @router.post(
        "/v1/completions",
        openapi_extra=takes(CompletionBody),
        responses=gives(generated("text_completion"), streams=True),
    )
    async def text_completions(request: Request) -> Response:
        """A text's continuation, whole or as a stream."""
        return await completions.answer(request)

    app.include_router(router)


def _add_token_routes(app: FastAPI, state: RouterState) -> None:
    @app.post("/tokenize", openapi_extra=takes(TokenizeBody), responses=gives(ANSWERS["tokens"]))
    async def tokenize(request: Request) -> Response:
        """Token ids of a prompt, or of messages in the model's template."""
        value = await read_json(request, state.settings)
        return JSONResponse(await tokens.tokenize(state, request.state.tenant, value))

    @app.post("/detokenize", openapi_extra=takes(DetokenizeBody), responses=gives(ANSWERS["text"]))
    async def detokenize(request: Request) -> Response:
        """The text of token ids."""
        value = await read_json(request, state.settings)
        return JSONResponse(await tokens.detokenize(state, request.state.tenant, value))


def _add_model_routes(app: FastAPI, state: RouterState) -> None:
    @app.get("/v1/models", responses=gives(ANSWERS["models"]))
    async def list_models() -> dict[str, Any]:
        """What is served right now."""
        return model_objects.model_list(state.registry.models())

    @app.get("/v1/models/{name:path}", responses=gives(ANSWERS["model"]))
    async def one_model(name: str) -> dict[str, Any]:
        """One model."""
        return model_objects.model_object(served_model(state.registry, name))


def _alias(state: RouterState) -> CollectorRegistry | None:
    if state.settings.metrics_alias == "none":
        return None
    alias = new_registry()
    alias.register(VllmAlias(state.series, state.registry))
    return alias


def _add_operator_routes(app: FastAPI, state: RouterState) -> None:
    alias = _alias(state)

    @app.head("/health", include_in_schema=False)
    @app.get("/health", responses=gives(ANSWERS["state"]))
    async def health() -> dict[str, str]:
        """The process answers; whether it can serve is for `/ready` to say."""
        return {"status": "alive"}

    @app.head("/ready", include_in_schema=False)
    @app.get("/ready", responses=gives(ANSWERS["state"]))
    async def ready() -> Response:
        """Whether a request would be served, and if not, why."""
        trouble = state.trouble()
        if trouble is None:
            return JSONResponse({"status": "ready"})
        return JSONResponse({"status": "not ready", "reason": trouble}, 503)

    @app.head("/version", include_in_schema=False)
    @app.get("/version", responses=gives(ANSWERS["state"]))
    async def version() -> dict[str, str]:
        """The router's version."""
        return {"version": __version__}

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return HTMLResponse(page(app.openapi()))

    @app.head("/metrics", include_in_schema=False)
    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """What the router counts, for Prometheus."""
        text = render(state.series) + (render(alias) if alias else b"")
        return Response(text, media_type=METRICS_CONTENT_TYPE)


async def _api_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return JSONResponse(error.body(), error.status, headers=dict(error.headers()))


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    phrase = HTTPStatus(error.status_code).phrase
    shown = ApiError(error.status_code, f"{phrase}: {request.method} {request.url.path}")
    headers: Mapping[str, str] = error.headers or {}
    return JSONResponse(shown.body(), shown.status, headers={**shown.headers(), **headers})
