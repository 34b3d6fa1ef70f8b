"""Chat templates: a model's Jinja source, rendered in a sandbox as the library renders it.

Knows the dialect that model makers write for: loop controls, `raise_exception`, `strftime_now`,
`tojson` without HTML escapes, `{% generation %}` blocks. Time comes in as an argument. Knows
nothing of tokens beyond the texts of the special ones that templates name.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from outrider_router.text.depth import is_too_deep

_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token")
RESERVED_NAMES = frozenset(
    {
        *_NAMED_TOKENS,
        *("messages", "tools", "documents", "add_generation_prompt", "continue_final_message"),
        *("chat_template", "dict", "namespace", "raise_exception", "strftime_now", "range"),
        *("lipsum", "cycler", "joiner"),
    }
)
"""What a request may not give a template a value for."""
# Of templates, and of what they do with values that they did not expect.
_FAULTS = (
    *(jinja2.TemplateError, ArithmeticError, LookupError),
    *(TypeError, ValueError, RecursionError),
)


class TemplateError(ValueError):
    """The template is broken or refuses the messages; the text is fit for the client."""


@dataclass(frozen=True)
class Conversation:
    """What a template is given.

    Attributes:
        messages: as templates expect them.
        tools: as templates expect them; None for none.
        variables: further names that the template may use, none of `RESERVED_NAMES`.
        add_generation_prompt: the assistant's turn is opened.
        continue_final_message: the prompt ends within the last message.
    """

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] | None = None
    variables: Mapping[str, Any] = field(default_factory=dict)
    add_generation_prompt: bool = True
    continue_final_message: bool = False


class ChatTemplate:
    """One model's chat template.

    Args:
        source: the Jinja source.
        tokenizer_config: content of `tokenizer_config.json`, for the special tokens' texts.
        now: the local time, for templates that print a date.

    Raises:
        TemplateError: the source does not compile.
    """

    def __init__(
        self, source: str, tokenizer_config: Mapping[str, Any], now: Callable[[], datetime]
    ) -> None:
        self.source = source
        self._special = _special_texts(tokenizer_config)
        environment = _environment(now)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise TemplateError(f"the model's chat template does not compile: {error}") from error

    def render(self, chat: Conversation) -> str:
        """The prompt as text, the last message's end included.

        Raises:
            TemplateError: the template refuses these messages.
        """
        try:
            return self._template.render(
                **self._special,
                **chat.variables,
                messages=chat.messages,
                tools=chat.tools,
                documents=None,
                add_generation_prompt=chat.add_generation_prompt,
            )
        except _FAULTS as error:
            raise TemplateError(f"the model's chat template failed: {error}") from error


def with_parsed_arguments(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """The message with the arguments of its tool calls as objects.

    Text that is no JSON stays as it is, and so does what is nested too deep.
    """
    calls = message.get("tool_calls")
    return {**message, "tool_calls": list(map(_parsed_call, calls))} if calls else message


def _parsed_call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    try:
        arguments = json.loads(function["arguments"])
    except (ValueError, RecursionError):
        return dict(call)
    if is_too_deep(arguments):
        return dict(call)
    return {**call, "function": {**function, "arguments": arguments}}


class _GenerationBlock(Extension):
    """`{% generation %}…{% endgeneration %}` marks training text; here it prints its body."""

    tags = {"generation"}  # noqa: RUF012 the base class declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Namespace(Namespace):
    """Jinja's namespace without names that lead into the interpreter."""

    def __init__(self, *args: Any, **values: Any) -> None:
        for name in dict(*args, **values):
            _check_name(name)
        super().__init__(*args, **values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"namespace attribute {name!r} is not allowed")


def _environment(now: Callable[[], datetime]) -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols]
    )

    def strftime_now(layout: str) -> str:
        return now().strftime(layout)

    environment.filters["tojson"] = _to_json
    environment.globals |= {
        "dict": _new_dict,
        "namespace": _Namespace,
        "raise_exception": _raise_exception,
        "strftime_now": strftime_now,
    }
    return environment


def _new_dict(*args: Any, **values: Any) -> dict[Any, Any]:
    """`dict` as a function: templates get no way to the class."""
    return dict(*args, **values)


def _raise_exception(message: str) -> None:
    raise jinja2.exceptions.TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _special_texts(config: Mapping[str, Any]) -> dict[str, str]:
    """Texts of the named special tokens; each is a string or an object with `content`."""
    texts = {}
    for name in _NAMED_TOKENS:
        value = config.get(name)
        text = value.get("content") if isinstance(value, Mapping) else value
        if isinstance(text, str):
            texts[name] = text
    return texts
