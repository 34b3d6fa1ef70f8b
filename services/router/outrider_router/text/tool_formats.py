"""How models write tool calls: the formats of four families, told apart by their chat templates.

A format says how a call is found in a model's text and how one is to be written, for grammars.
Sources: the chat templates of Hermes 2 Pro and Qwen 2.5/3, of Llama 3.1, of Mistral (the tokenizer
versions with and without `[ARGS]`), and of DeepSeek V3, R1 and V3.1.
"""

import re
from dataclasses import dataclass, replace

NAME, ARGUMENTS, CALL = "{name}", "{arguments}", "{call}"


@dataclass(frozen=True)
class ToolFormat:
    """One family's way.

    Attributes:
        openers: any of them in a text begins calls.
        closers: any of them ends a run of calls.
        between: further markers that stand before a call.
        header: what stands before a call's arguments, where the name does not stand among them.
        header_after: markers after which such a call may begin.
        header_markers: markers inside of a header.
        bare: a message that begins with an object may be a call, without any marker.
        call: how to write a call, with `{call}` for one JSON object or `{name}` and `{arguments}`.
        separator: stands between two calls.
        before, after: stand around all calls.
        arguments_key: the key of arguments in one JSON object.
        arguments_as_text: earlier calls are rendered with their arguments as JSON text.
        id_characters: length of a call's id where the template insists on one.
    """

    openers: tuple[str, ...]
    call: str
    closers: tuple[str, ...] = ()
    between: tuple[str, ...] = ()
    header: re.Pattern[str] | None = None
    header_after: tuple[str, ...] = ()
    header_markers: tuple[str, ...] = ()
    bare: bool = False
    separator: str = "\n"
    before: str = ""
    after: str = ""
    arguments_key: str = "arguments"
    arguments_as_text: bool = False
    id_characters: int | None = None

    @property
    def glue(self) -> tuple[str, ...]:
        """Markers that may stand before a call."""
        return self.openers + self.between

    @property
    def markers(self) -> str:
        """A text in which every marker of the format occurs."""
        parts = (self.before, self.call, self.after)
        return "\n".join((*parts, *self.glue, *self.closers, *self.header_markers))


HERMES = ToolFormat(
    openers=("<tool_call>",),
    closers=("</tool_call>",),
    call="<tool_call>\n{call}\n</tool_call>",
)
LLAMA3 = ToolFormat(
    openers=("<|python_tag|>",),
    between=(";",),
    bare=True,
    call="{call}",
    separator="; ",
    arguments_key="parameters",
)
_MISTRAL_NAME = re.compile(r"(?P<name>[\w.-]+)(?:\[CALL_ID\][^\[{]*)?(?:\[ARGS\])?\s*")
MISTRAL = ToolFormat(
    openers=("[TOOL_CALLS]",),
    closers=("]",),
    between=("[", ","),
    header=_MISTRAL_NAME,
    header_after=("[TOOL_CALLS]",),
    header_markers=("[CALL_ID]", "[ARGS]"),
    call="{call}",
    separator=", ",
    before="[TOOL_CALLS][",
    after="]",
    id_characters=9,
)
MISTRAL_ARGS = replace(
    MISTRAL,
    call="[TOOL_CALLS]{name}[ARGS]{arguments}",
    separator="",
    before="",
    after="",
)
_DEEPSEEK_CALL, _DEEPSEEK_SEP = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>"
_DEEPSEEK_CALL_END = "<｜tool▁call▁end｜>"
_DEEPSEEK_CALLS, _DEEPSEEK_CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_DEEPSEEK_NAME = re.compile(
    rf"(?:function{_DEEPSEEK_SEP})?(?P<name>[\w.-]+)\s*(?:{_DEEPSEEK_SEP})?\s*(?:```json\s*)?"
)
DEEPSEEK_R1 = ToolFormat(
    openers=(_DEEPSEEK_CALLS,),
    closers=(_DEEPSEEK_CALLS_END,),
    between=(_DEEPSEEK_CALL, _DEEPSEEK_CALL_END, "```"),
    header=_DEEPSEEK_NAME,
    header_after=(_DEEPSEEK_CALL,),
    header_markers=(_DEEPSEEK_SEP,),
    call=f"{_DEEPSEEK_CALL}function{_DEEPSEEK_SEP}{NAME}\n```json\n{ARGUMENTS}\n```"
    f"{_DEEPSEEK_CALL_END}",
    before=_DEEPSEEK_CALLS,
    after=_DEEPSEEK_CALLS_END,
    arguments_as_text=True,
)
DEEPSEEK_V31 = replace(
    DEEPSEEK_R1,
    call=f"{_DEEPSEEK_CALL}{NAME}{_DEEPSEEK_SEP}{ARGUMENTS}{_DEEPSEEK_CALL_END}",
    separator="",
)


def tool_format_of(template: str) -> ToolFormat | None:
    """The format that a chat template teaches; None for one that is not known here."""
    if "tools" not in template:
        return None
    if _DEEPSEEK_CALLS in template:
        return DEEPSEEK_R1 if "```json" in template else DEEPSEEK_V31
    if "[TOOL_CALLS]" in template:
        return MISTRAL_ARGS if "[ARGS]" in template else MISTRAL
    if "<tool_call>" in template:
        # Some templates wrap calls that are no JSON into the same markers.
        return None if "<function=" in template or "<arg_key>" in template else HERMES
    if "<|python_tag|>" in template or '"parameters": dictionary' in template:
        return LLAMA3
    return None
