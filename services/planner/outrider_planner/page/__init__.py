"""The live page: what the planner decides and why, in a browser, from the same ``/v1`` as others.

Knows under which paths the files beside this module are found. They hold no state of the planner,
so they are open where ``/v1`` is not; the page asks for the token and sends it along.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Header, Request, Response
from fastapi.responses import RedirectResponse
from starlette.exceptions import HTTPException

from outrider_runtime.pages import Page

FOLDER = Path(__file__).parent


def page_routes() -> APIRouter:
    """``/page/`` and its files; ``/`` leads there."""
    page, found = Page(FOLDER), APIRouter(include_in_schema=False)

    @found.get("/")
    async def home(request: Request) -> Response:
        # Relative, so that it holds behind a proxy that adds a prefix; what to look at stays.
        return RedirectResponse("page/" + (f"?{query}" if (query := request.url.query) else ""))

    @found.get("/page/{path:path}")
    async def file(path: str, if_none_match: Annotated[str | None, Header()] = None) -> Response:
        answer = page.answer(path, if_none_match)
        if answer is None:
            raise HTTPException(404)
        return Response(answer.body, answer.status, answer.headers)

    return found
