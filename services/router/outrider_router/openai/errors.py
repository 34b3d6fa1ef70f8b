"""Errors as OpenAI clients expect them: one envelope for all, with the statuses they retry on.

The exceptions of the API layer and the only place that knows which failure has which status.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from outrider_router.access.tenant import Overloaded
from outrider_router.metrics import Outcome
from outrider_router.openai.grammar_faults import in_fields
from outrider_router.types import Failure, FailureCode

RETRY_AFTER_S = 1
_CLIENT_NAMES = {"tenant_salt": "cache_salt", "prediction_ids": "prediction"}
_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_exceeded"}
_CODES = {
    400: "invalid_request",
    401: "invalid_api_key",
    403: "permission_denied",
    404: "not_found",
    405: "method_not_allowed",
    408: "timeout",
    413: "request_too_large",
    415: "unsupported_media_type",
    421: "wrong_host",
    429: "rate_limit_exceeded",
    500: "server_error",
    503: "overloaded",
}


class ApiError(Exception):
    """An answer other than success.

    Args:
        status: HTTP status.
        message: for the client's eyes.
        code: machine-readable; the status decides if None.
        param: the field at fault, if one is.
        outcome: how the request counts; the status decides if None.
        retry: False tells clients that trying again would repeat delivered work.
        retry_after_s: when trying again makes sense, for 429 and 503.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        outcome: Outcome | None = None,
        retry: bool | None = None,
        retry_after_s: float = RETRY_AFTER_S,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code or _CODES.get(status, "server_error" if status >= 500 else "invalid_value")
        self.param = param
        self.outcome: Outcome = outcome or _outcome_of(status)
        self._retry = retry
        self._retry_after_s = retry_after_s

    def body(self) -> dict[str, Any]:
        """The envelope."""
        kind = _TYPES.get(
            self.status, "server_error" if self.status >= 500 else "invalid_request_error"
        )
        return {
            "error": {
                "message": self.message,
                "type": kind,
                "param": self.param,
                "code": self.code,
            }
        }

    def headers(self) -> Mapping[str, str]:
        """Headers that tell clients whether and when to try again."""
        if self._retry is False:
            return {"x-should-retry": "false"}
        if self.status not in (429, 503):
            return {}
        milliseconds = math.ceil(self._retry_after_s * 1000)
        seconds = math.ceil(self._retry_after_s)
        return {"retry-after": str(seconds), "retry-after-ms": str(milliseconds)}


def invalid(message: str, param: str | None, code: str = "invalid_value") -> ApiError:
    """400: the request is wrong."""
    return ApiError(400, message, code=code, param=param)


def shutting_down() -> ApiError:
    """503: the router takes nothing new."""
    return ApiError(503, "the router is shutting down")


def overloaded(error: Overloaded) -> ApiError:
    """429: a limit is reached; the request may be made again."""
    return ApiError(429, str(error), retry_after_s=error.retry_after_s)


def unsupported(param: str, why: str = "is not supported") -> ApiError:
    """400: understood, but not offered here."""
    return invalid(f"{param} {why}", param, "unsupported_parameter")


def too_long(tokens: int | str, limit: int, param: str) -> ApiError:
    """400: the prompt leaves no room in the context."""
    return invalid(
        f"the prompt has {tokens} tokens; the context of {limit} tokens leaves room for "
        f"{limit - 1} of them at most",
        param,
        "context_length_exceeded",
    )


@dataclass(frozen=True)
class FieldNames:
    """What the client called what the contract names otherwise: its prompt and its grammar.

    `grammar_lines`: where the router wrote the grammar, the fields that its lines were made of.
    """

    prompt: str
    grammar: str | None = None
    grammar_lines: Mapping[int, str] = field(default_factory=dict)

    def told(self, failure: Failure) -> tuple[str, str | None]:
        """A worker's message and the field at fault, in the client's words."""
        param = failure.param
        if param == "grammar":
            return in_fields(failure.message, self.grammar_lines) or (failure.message, self.grammar)
        return failure.message, _CLIENT_NAMES.get(param, param) if param else None


def of_failure(failure: Failure, names: FieldNames, delivered: bool) -> ApiError:
    """The answer to a worker's failure.

    Args:
        failure: what the worker said.
        names: of the request's fields.
        delivered: tokens were generated already, so a blind retry would pay for them twice.
    """
    retry = False if delivered else None
    message, param = names.told(failure)
    match failure.code:
        case FailureCode.INVALID:
            return ApiError(400, message, code="invalid_value", param=param)
        case FailureCode.UNSUPPORTED:
            return ApiError(400, message, code="unsupported_parameter", param=param)
        case FailureCode.TOO_LONG:
            return ApiError(
                400, failure.message, code="context_length_exceeded", param=names.prompt
            )
        case FailureCode.OVERLOADED:
            return ApiError(429, failure.message, retry=retry)
        case FailureCode.UNAVAILABLE:
            return ApiError(503, failure.message, retry=retry)
        case FailureCode.DEADLINE:
            return ApiError(408, failure.message, outcome="deadline", retry=retry)
        case FailureCode.INTERNAL:
            return ApiError(500, failure.message, retry=retry)


def _outcome_of(status: int) -> Outcome:
    if status == 429:
        return "overloaded"
    if status == 503:
        return "unavailable"
    return "error" if status >= 500 else "invalid"
