"""`/chat`: a page to talk to the models, where each token shows how it came about.

Fixed files beside this module, open to everybody: whatever the page does goes through the API like
any other client's requests, with a key where the router wants one.
"""

from pathlib import Path

from fastapi import FastAPI, Request, Response
from fastapi.responses import RedirectResponse

from outrider_router.openai.errors import ApiError
from outrider_runtime.pages import Page

PATH = "/chat"


def is_page(path: str) -> bool:
    """Whether a path belongs to the page, which holds nothing worth a key."""
    return path == PATH or path.startswith(f"{PATH}/")


def add_chat_page(app: FastAPI) -> None:
    """Serve the page's files under `/chat/`."""
    page = Page(Path(__file__).parent)

    @app.get(PATH, include_in_schema=False)
    async def whole_path() -> Response:
        # Relative, so that it holds behind a proxy's prefix too.
        return RedirectResponse("chat/")

    @app.get(f"{PATH}/{{path:path}}", include_in_schema=False)
    async def file(path: str, request: Request) -> Response:
        found = page.answer(path, request.headers.get("if-none-match"))
        if found is None:
            raise ApiError(404, f"the page has no file {path!r}")
        return Response(found.body, found.status, dict(found.headers))
