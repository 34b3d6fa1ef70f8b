"""Answers of a prescribed form: every field that asks for one, as the worker gets it (C01, C09)."""

from typing import Any

import openai
import pytest

from outrider.worker.v1 import worker_pb2
from tests.support.fake_worker import Script, saying
from tests.support.router_stack import RunningRouter, Stack

pytestmark = pytest.mark.asyncio(loop_scope="module")
MESSAGES: Any = [{"role": "user", "content": "What is the capital of France?"}]
TEXT = "as scripted"


async def ask(router: RunningRouter, **options: Any) -> Any:
    return await router.client.chat.completions.create(model="tiny", messages=MESSAGES, **options)


FORMS: list[tuple[dict[str, Any], int, str]] = [
    ({"response_format": {"type": "json_object"}}, worker_pb2.GRAMMAR_KIND_JSON_SCHEMA, "object"),
    (
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "strict": True, "schema": {"type": "integer"}},
            }
        },
        worker_pb2.GRAMMAR_KIND_JSON_SCHEMA,
        '{"type": "integer"}',
    ),
    (
        {"response_format": {"type": "regex", "pattern": "a+"}},
        worker_pb2.GRAMMAR_KIND_REGEX,
        "a+",
    ),
    ({"structured_outputs": {"json": {"enum": [1]}}}, worker_pb2.GRAMMAR_KIND_JSON_SCHEMA, "enum"),
    ({"structured_outputs": {"choice": ["a", 'b"']}}, worker_pb2.GRAMMAR_KIND_REGEX, 'a|b"'),
    ({"structured_outputs": {"regex": "a|b"}}, worker_pb2.GRAMMAR_KIND_REGEX, "a|b"),
    ({"guided_json": '{"type": "null"}'}, worker_pb2.GRAMMAR_KIND_JSON_SCHEMA, "null"),
    ({"json_schema": '{"type": "null"}'}, worker_pb2.GRAMMAR_KIND_JSON_SCHEMA, "null"),
    ({"regex": "[0-9]"}, worker_pb2.GRAMMAR_KIND_REGEX, "[0-9]"),
    ({"ebnf": 'root ::= "a"'}, worker_pb2.GRAMMAR_KIND_LARK, 'root ::= "a"'),
    ({"guided_grammar": 'start: "a"'}, worker_pb2.GRAMMAR_KIND_LARK, 'start: "a"'),
]


@pytest.mark.parametrize(("fields", "kind", "text"), FORMS)
async def test_prescribed_forms(offering: Stack, fields: Any, kind: int, text: str) -> None:
    offering.worker.script = saying(TEXT)
    await ask(offering.router, extra_body=fields)
    (submit,) = offering.worker.submitted
    assert submit.grammar.kind == kind
    assert text in submit.grammar.text


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "json_schema", "schema": {}}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "response_format.json_schema.schema",
        ),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": "json"}, "response_format"),
        ({"regex": ""}, "regex"),
        ({"guided_regex": "a\\"}, "guided_regex"),
        (
            {"response_format": {"type": "regex", "pattern": "\\\\\\"}},
            "response_format.pattern",
        ),
        ({"response_format": {"type": "regex"}}, "response_format.pattern"),
        ({"response_format": {"type": "regex", "pattern": ""}}, "response_format.pattern"),
        ({"response_format": {"type": "grammar"}}, "response_format.grammar"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        ({"guided_json": "{"}, "guided_json"),
        ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs"),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag"),
        ({"regex": "a", "ebnf": "b"}, "ebnf"),
        ({"regex": "a" * 70_000}, "regex"),
    ],
)
async def test_c09_malformed_forms_are_told(offering: Stack, fields: Any, param: str) -> None:
    offering.worker.script = saying(TEXT)
    body = {"model": "tiny", "messages": MESSAGES} | fields
    response = await offering.router.http.post("/v1/chat/completions", json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
    assert (await ask(offering.router)).choices[0].message.content == TEXT


async def test_what_the_worker_says_of_a_grammar_names_the_clients_field(offering: Stack) -> None:
    """C09: a pattern that does not compile; only the worker can tell."""
    offering.worker.script = Script(
        [], failure=worker_pb2.FAILURE_CODE_INVALID, failure_param="grammar"
    )
    with pytest.raises(openai.BadRequestError) as caught:
        await ask(offering.router, extra_body={"regex": "("})
    assert caught.value.param == "regex"
