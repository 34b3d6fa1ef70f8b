"""Tools and thinking as the official client sees them: C03, C06, C07, each family of models."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest

from outrider.worker.v1 import worker_pb2
from tests.support import tiny_tokenizers as tiny
from tests.support import tool_models as models
from tests.support.fake_worker import FakeWorker, Script
from tests.support.router_stack import RunningRouter, running_router

pytestmark = pytest.mark.asyncio(loop_scope="module")
MESSAGES: Any = [{"role": "user", "content": "Weather in Paris?"}]
TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "Says it <|im_end|>.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
    for name in ("weather", "time")
]
(END,) = tiny.encode("<|im_end|>")
ARGUMENTS = '{"city": "Paris \\"}"}'
HERMES_CALLS = (
    f'Well.\n<tool_call>\n{{"name": "weather", "arguments": {ARGUMENTS}}}\n</tool_call>\n'
    '<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>'
)
DEEPSEEK_CALL = (
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n"
    f"```json\n{ARGUMENTS}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
)
FAMILIES = {
    "hermes": (models.HERMES, (), ("<tool_call>", "</tool_call>"), HERMES_CALLS),
    "llama": (
        models.LLAMA,
        ("<|python_tag|>",),
        (),
        f'<|python_tag|>{{"name": "weather", "parameters": {ARGUMENTS}}}',
    ),
    "mistral": (
        models.MISTRAL,
        ("[TOOL_CALLS]",),
        (),
        f'[TOOL_CALLS] [{{"name": "weather", "arguments": {ARGUMENTS}}}]',
    ),
    "deepseek": (
        models.DEEPSEEK,
        (),
        ("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>"),
        DEEPSEEK_CALL,
    ),
}


@asynccontextmanager
async def serving(
    template: str, special: tuple[str, ...] = (), markers: tuple[str, ...] = (), **options: Any
) -> AsyncIterator[tuple[FakeWorker, RunningRouter]]:
    tokenizer = models.tokenizer_json(special, markers)
    worker = FakeWorker(chat_template=template, tokenizer=tokenizer, options=("grammar",))
    async with worker, running_router(worker, **options) as router:
        yield worker, router


def saying(worker: FakeWorker, text: str, size: int = 3) -> Script:
    ids = models.encode(worker.tokenizer, text)
    return Script([ids[at : at + size] for at in range(0, len(ids), size)])


async def ask(router: RunningRouter, **options: Any) -> Any:
    return await router.client.chat.completions.create(model="tiny", messages=MESSAGES, **options)


async def streamed(router: RunningRouter, **options: Any) -> dict[int, dict[str, Any]]:
    """Each choice's message as a client joins it, and how often it ended."""
    choices: dict[int, dict[str, Any]] = {}
    async for chunk in await ask(router, stream=True, **options):
        for choice in chunk.choices:
            one = choices.setdefault(
                choice.index, {"content": "", "reasoning": "", "calls": {}, "ends": []}
            )
            one["content"] += choice.delta.content or ""
            one["reasoning"] += getattr(choice.delta, "reasoning_content", None) or ""
            for call in choice.delta.tool_calls or []:
                known = one["calls"].setdefault(call.index, {"ids": [], "names": [], "text": ""})
                known["ids"] += [call.id] if call.id else []
                known["names"] += [call.function.name] if call.function.name else []
                known["text"] += call.function.arguments or ""
            one["ends"] += [choice.finish_reason] if choice.finish_reason else []
    return choices


@pytest.mark.parametrize("family", FAMILIES)
async def test_calls_whole_and_streamed(family: str) -> None:
    template, special, markers, text = FAMILIES[family]
    async with serving(template, special, markers) as (worker, router):
        worker.script = saying(worker, text)
        whole = (await ask(router, tools=TOOLS)).choices[0]
        assert whole.finish_reason == "tool_calls"
        calls = whole.message.tool_calls
        assert calls[0].function.name == "weather"
        assert calls[0].function.arguments == ARGUMENTS
        assert json.loads(calls[0].function.arguments) == {"city": 'Paris "}'}
        assert whole.message.content == ("Well.\n" if family == "hermes" else None)
        assert len(calls[0].id) == (9 if family == "mistral" else 29)
        (one,) = (await streamed(router, tools=TOOLS)).values()
        assert one["ends"] == ["tool_calls"]
        assert one["content"] == (whole.message.content or "")
        for at, call in enumerate(calls):
            assert one["calls"][at]["names"] == [call.function.name]
            assert one["calls"][at]["text"] == call.function.arguments
            assert len(one["calls"][at]["ids"]) == 1
        prompt = worker.texts()[0]
        assert '"name": "weather"' in prompt
        ends = list(worker.submitted[0].prompt_ids).count(END)
        assert ends == 2, "a tool's description forges no turn"


async def test_each_choice_is_parsed_for_itself() -> None:
    """C03: choices whose deltas interleave, each with another text."""
    texts = [HERMES_CALLS, "plain <tool_cal", '<tool_call>{"name": "time"}</tool_call>']
    async with serving(models.HERMES) as (worker, router):
        worker.script = lambda submit: saying(worker, texts[submit.choice_index], 1)
        whole = (await ask(router, tools=TOOLS, n=3)).choices
        split = await streamed(router, tools=TOOLS, n=3)
        assert [choice.finish_reason for choice in whole] == ["tool_calls", "stop", "tool_calls"]
        assert [len(choice.message.tool_calls or []) for choice in whole] == [2, 0, 1]
        assert whole[1].message.content == texts[1]
        assert [len(split[at]["calls"]) for at in range(3)] == [2, 0, 1]
        assert split[1]["content"] == texts[1]


async def test_without_tools_markers_are_text() -> None:
    """C06: no tools, or none to be called: no parser, and the text is whole."""
    async with serving(models.HERMES) as (worker, router):
        worker.script = saying(worker, HERMES_CALLS)
        unused: list[Any] = [{}, {"tools": TOOLS, "tool_choice": "none"}, {"tools": []}]
        for options in unused:
            answer = (await ask(router, **options)).choices[0]
            assert answer.message.content == HERMES_CALLS
            assert (answer.finish_reason, answer.message.tool_calls) == ("stop", None)
        assert all("weather" not in prompt for prompt in worker.texts())


async def test_required_and_named_calls_are_prescribed_by_a_grammar() -> None:
    async with serving(models.HERMES, (), ("<tool_call>", "</tool_call>")) as (worker, router):
        worker.script = saying(worker, HERMES_CALLS)
        named = {"type": "function", "function": {"name": "time"}}
        assert (await ask(router, tools=TOOLS)).choices[0].finish_reason == "tool_calls"
        required = await ask(router, tools=TOOLS, tool_choice="required")
        chosen = await ask(router, tools=TOOLS, tool_choice=named)
        auto, both, one = worker.submitted
        assert not auto.HasField("grammar")
        assert both.grammar.kind == worker_pb2.GRAMMAR_KIND_LARK
        opener = models.encode(worker.tokenizer, "<tool_call>")
        assert len(opener) == 1
        assert f"<[{opener[0]}]>" in both.grammar.text, "the marker is named as the token it is"
        assert '"weather"' in both.grammar.text
        assert '"weather"' not in one.grammar.text
        assert required.choices[0].finish_reason == "tool_calls"
        assert chosen.choices[0].finish_reason == "stop", "as OpenAI's service ends a named call"
        assert len(chosen.choices[0].message.tool_calls) == 1


def allowing(mode: str, *names: str) -> dict[str, Any]:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


async def test_of_the_tools_only_some_may_be_allowed() -> None:
    """Where the model is free it does not see the others; where it must call, they stay shown."""
    markers = ("<tool_call>", "</tool_call>")
    async with serving(models.HERMES, (), markers) as (worker, router):
        worker.script = saying(worker, HERMES_CALLS)
        free = await ask(router, tools=TOOLS, tool_choice=allowing("auto", "weather"))
        held = await ask(router, tools=TOOLS, tool_choice=allowing("required", "weather"))
        await ask(router, tools=TOOLS, tool_choice=allowing("auto", "time", "weather"))
        await ask(router, tools=TOOLS)
        one, forced, both, all_of_them = worker.submitted
        assert not one.HasField("grammar")
        assert ['"name": "time"' in text for text in worker.texts()] == [False, True, True, True]
        assert '"weather"' in forced.grammar.text
        assert '"time"' not in forced.grammar.text
        assert both.prompt_ids == all_of_them.prompt_ids
        ends = [answer.choices[0].finish_reason for answer in (free, held)]
        assert ends == ["tool_calls", "tool_calls"]


async def test_one_call_at_a_time_ends_the_answer_with_it() -> None:
    async with serving(models.HERMES) as (worker, router):
        worker.script = saying(worker, HERMES_CALLS, 1)
        answer = await ask(router, tools=TOOLS, parallel_tool_calls=False)
        (call,) = answer.choices[0].message.tool_calls
        assert call.function.arguments == ARGUMENTS
        head = HERMES_CALLS[: HERMES_CALLS.index("}\n</tool_call>") + 1]
        assert answer.usage.completion_tokens == len(models.encode(worker.tokenizer, head))
        assert router.settled()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": "x"}, "tools"),
        ({"tools": [{}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools[0].function.name"),
        ({"tools": [*TOOLS, TOOLS[0]]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": "sometimes"}, "tool_choice"),
        (
            {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "x"}}},
            "tool_choice",
        ),
        ({"tools": TOOLS, "tool_choice": {"type": "custom"}}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": allowing("auto", "x")}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": allowing("auto")}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": allowing("named", "time")}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
        ({"tool_choice": allowing("required", "time")}, "tool_choice"),
        (
            {
                "tools": TOOLS,
                "tool_choice": "required",
                "response_format": {"type": "json_object"},
            },
            "response_format",
        ),
        ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages[0].tool_calls[0]"),
    ],
)
async def test_faults_are_named(fields: dict[str, Any], param: str) -> None:
    async with serving(models.HERMES) as (_, router):
        body = {"model": "tiny", "messages": MESSAGES} | fields
        response = await router.http.post("/v1/chat/completions", json=body)
        assert (response.status_code, response.json()["error"]["param"]) == (400, param)


async def test_an_unknown_template_is_told() -> None:
    async with serving(tiny.CHATML) as (_, router):
        with pytest.raises(openai.BadRequestError, match="no format of tool calls") as caught:
            await ask(router, tools=TOOLS)
        assert (caught.value.param, caught.value.code) == ("tools", "unsupported_parameter")


@pytest.mark.parametrize(
    ("template", "shown"),
    [
        (models.HERMES, '"arguments": {"city": "Paris \\"}"}'),
        (models.DEEPSEEK, f"```json\n{ARGUMENTS}\n```"),
    ],
)
async def test_earlier_calls_are_rendered_as_the_template_wants_them(
    template: str, shown: str
) -> None:
    async with serving(template) as (worker, router):
        call = {"id": "c", "function": {"name": "weather", "arguments": ARGUMENTS}}
        said: Any = {
            "role": "assistant",
            "content": None,
            "tool_calls": [call | {"type": "function"}],
        }
        result: Any = {"role": "tool", "tool_call_id": "c", "content": "Rain."}
        await router.client.chat.completions.create(
            model="tiny", messages=[*MESSAGES, said, result]
        )
        (prompt,) = worker.texts()
        assert shown in prompt
        assert "<|im_start|>tool\nRain.<|im_end|>" in prompt


async def test_thinking_is_told_from_the_answer() -> None:
    """Templates that open the thinking in the prompt; A05: no count above what was delivered."""
    text = "so it is\n</think>\n\nYes."
    async with serving(models.THINKING, (), ("<tool_call>",)) as (worker, router):
        worker.script = saying(worker, text, 2)
        answer = await ask(router)
        message = answer.choices[0].message
        assert (message.reasoning_content, message.content) == ("so it is", "Yes.")
        (one,) = (await streamed(router)).values()
        assert (one["reasoning"], one["content"]) == ("so it is", "Yes.")
        thought = answer.usage.completion_tokens_details.reasoning_tokens
        assert thought == len(models.encode(worker.tokenizer, text[: text.index("\n\nYes")]))
        assert thought < answer.usage.completion_tokens
        one_text = (await ask(router, extra_body={"separate_reasoning": False})).choices[0]
        assert one_text.message.content == text
        hidden = (await ask(router, extra_body={"include_reasoning": False})).choices[0]
        assert hidden.message.content == "Yes."
        assert not hasattr(hidden.message, "reasoning_content")
        cut = await ask(router, max_tokens=3)
        assert cut.usage.completion_tokens_details.reasoning_tokens == 3


async def test_a_prescribed_form_leaves_thinking_free() -> None:
    async with serving(models.THINKING) as (worker, router):
        worker.script = saying(worker, "hm</think>{}")
        answer = await ask(router, response_format={"type": "json_object"})
        assert answer.choices[0].message.content == "{}"
        (submit,) = worker.submitted
        closer = models.encode(worker.tokenizer, "</think>")
        assert submit.grammar.text.startswith(f"start: FREE_TEXT? <[{closer[0]}]>")


async def test_a_form_that_holds_from_the_first_token_is_content() -> None:
    """Where a client's own grammar holds at once, the thinking that the template opened is over."""
    own = {"guided_grammar": 'start: "yes"'}
    async with serving(models.THINKING) as (worker, router):
        worker.script = saying(worker, "yes")
        answer = await ask(router, extra_body=own)
        assert answer.choices[0].message.content == "yes"
        assert answer.usage.completion_tokens_details.reasoning_tokens == 0
        (one,) = (await streamed(router, extra_body=own)).values()
        assert (one["reasoning"], one["content"]) == ("", "yes")


async def test_a_tools_bad_schema_is_named_by_its_place() -> None:
    """C09: the worker tells a line of a grammar that the client has never seen."""
    async with serving(models.LLAMA) as (worker, router):
        worker.script = Script(
            [],
            failure=worker_pb2.FAILURE_CODE_INVALID,
            failure_param="grammar",
            failure_message="invalid lark: at 7(14): failed to compile JSON schema: Oh\n   7 | x",
        )
        with pytest.raises(openai.BadRequestError) as caught:
            await ask(router, tools=TOOLS, tool_choice="required")
        (submit,) = worker.submitted
        assert submit.grammar.text.split("\n")[6].startswith("call_1_json:")
        place = "tools[1].function.parameters"
        body: Any = caught.value.body
        assert (body["message"], body["param"]) == (f"{place}: Oh", place)
