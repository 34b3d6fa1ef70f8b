"""Request bodies: the fields the router acts on, with their types.

Null is the same as absent. Other fields stay in `model_extra`, where `params` sorts them into
ignored, refused and unknown ones. Types are strict: "0.5" is no temperature.
"""

from abc import abstractmethod
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from outrider_router.openai.bounded import (
    MAX_TOKEN_ID,
    BadWords,
    Prompts,
    Stops,
    TokenIds,
    at_most,
    at_most_of,
)
from outrider_router.openai.caps import DEFAULT_CAPS, Caps
from outrider_router.openai.errors import ApiError, invalid

TokenId = Annotated[int, Field(ge=0, le=MAX_TOKEN_ID)]
ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
MAX_TOP_LOGPROBS = 20
MAX_FIELDS = 256
"""Fields of a body, unknown ones included: several times as many as anybody has."""
Body = TypeVar("Body", bound=BaseModel)
_TEXT_PART = {
    "type": "object",
    "required": ["type", "text"],
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
}
_CONTENT = {"anyOf": [{"type": "string"}, {"type": "array", "minItems": 1, "items": _TEXT_PART}]}
_MESSAGE = {
    "type": "object",
    "required": ["role", "content"],
    "properties": {
        "role": {"enum": ["system", "developer", "user", "assistant", "tool"]},
        "content": _CONTENT,
    },
}
# Described here, checked one by one in `openai.messages`.
Messages = Annotated[
    list[Any],
    Field(min_length=1, json_schema_extra={"items": _MESSAGE}),
    at_most_of(lambda caps: caps.messages),
]
# Checked one by one in `openai.tools`.
Tools = Annotated[Any, at_most_of(lambda caps: caps.tools)]
# Types of faults whose own text says too little, or names a class of ours.
_TEXTS = {
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    # Only `logit_bias` has a pattern.
    "string_pattern_mismatch": "keys must be token ids",
}
_LOOSE = ConfigDict(extra="allow", strict=True, protected_namespaces=())


class StreamOptions(BaseModel):
    """What else a stream carries."""

    model_config = _LOOSE

    include_usage: bool | None = None


class SpeculationField(BaseModel):
    """A client's wishes about speculation."""

    model_config = ConfigDict(extra="forbid", strict=True)

    enabled: bool | None = None
    max_draft: Annotated[int, Field(ge=0, le=1024)] | None = None
    drafter: Annotated[str, Field(max_length=64)] | None = None
    relaxed: bool | None = None


class GenerationBody(BaseModel):
    """What chat completions and completions have in common."""

    model_config = _LOOSE

    model: Annotated[str, Field(min_length=1, max_length=512)]
    stream: bool | None = None
    stream_options: Annotated[StreamOptions | None, at_most(16)] = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = None
    top_k: Annotated[int, Field(ge=-1, lt=2**31)] | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    stop: Stops | None = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=64)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64)] | None = None
    ignore_eos: bool | None = None
    speculation: Annotated[SpeculationField | None, at_most(8)] = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    include_stop_str_in_output: bool | None = None
    no_stop_trim: bool | None = None
    skip_special_tokens: bool | None = None
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, lt=2**31)] | None = None
    stream_interval: Annotated[int, Field(ge=1, le=4096)] | None = None
    priority: Annotated[int, Field(ge=-(2**31), lt=2**31)] | None = None
    # Checked by `openai.prediction`.
    prediction: Any = None
    # Checked by `openai.structure`.
    response_format: Any = None
    structured_outputs: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    json_schema: Any = None
    regex: Any = None
    ebnf: Any = None
    # Offered only where the worker declares them.
    min_p: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=100, allow_inf_nan=False)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)] | None = None
    min_tokens: Annotated[int, Field(ge=0, lt=2**32)] | None = None
    bad_words: BadWords | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    logit_bias: Annotated[
        dict[
            Annotated[str, Field(pattern=r"^\d{1,9}$")],
            Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)],
        ]
        | None,
        at_most_of(lambda caps: caps.logit_biases),
    ] = None

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings."""
        return tuple(self.stop or ())

    @property
    @abstractmethod
    def wanted_logprobs(self) -> int | None:
        """Alternatives beside each token's logprob; None without logprobs."""

    @property
    def wants_usage_chunk(self) -> bool:
        """True if a stream shall end with a chunk of usage."""
        return bool(self.stream_options and self.stream_options.include_usage)


class ChatBody(GenerationBody):
    """Body of `/v1/chat/completions`; `messages` are checked by `openai.messages`, tools by
    `openai.tools`.
    """

    messages: Messages
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    tools: Tools = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: ReasoningEffort | None = None
    include_reasoning: bool | None = None
    separate_reasoning: bool | None = None
    chat_template_kwargs: Annotated[dict[str, Any] | None, at_most(32)] = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None

    @property
    def wanted_logprobs(self) -> int | None:
        """Alternatives beside each token's logprob; None without logprobs."""
        return (self.top_logprobs or 0) if self.logprobs else None


class CompletionBody(GenerationBody):
    """Body of `/v1/completions`."""

    prompt: Prompts
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None

    @property
    def wanted_logprobs(self) -> int | None:
        """Alternatives beside each token's logprob; None without logprobs."""
        return self.logprobs


class TokenizeBody(BaseModel):
    """Body of `/tokenize`: a prompt or messages."""

    model_config = _LOOSE

    model: str
    prompt: str | None = None
    messages: Messages | None = None
    tools: Tools = None
    chat_template_kwargs: Annotated[dict[str, Any] | None, at_most(32)] = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeBody(BaseModel):
    """Body of `/detokenize`."""

    model_config = _LOOSE

    model: str
    tokens: TokenIds


def parse(kind: type[Body], value: Any, caps: Caps = DEFAULT_CAPS) -> Body:
    """The body as an object.

    Raises:
        ApiError: 400, naming the first field at fault.
    """
    if not isinstance(value, dict):
        raise invalid("the body must be a JSON object", None)
    if len(value) > MAX_FIELDS:
        raise invalid(f"{len(value)} fields are more than the {MAX_FIELDS} allowed", None)
    try:
        return kind.model_validate(value, context=caps)
    except ValidationError as error:
        raise first_error(error) from error


def first_error(error: ValidationError) -> ApiError:
    """The first fault as a 400. Names of union members in its place are left out."""
    first = error.errors(include_url=False, include_input=False)[0]
    place = first["loc"]
    field = str(place[0]) if place else None
    if len(place) > 1 and place[0] in ("stream_options", "speculation"):
        field = f"{field}.{place[1]}"
    code = "missing_required_parameter" if first["type"] == "missing" else "invalid_value"
    text = _TEXTS.get(first["type"], first["msg"])
    return invalid(f"{field or 'body'}: {text}", field, code)
