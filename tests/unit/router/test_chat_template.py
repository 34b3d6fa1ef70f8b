"""Templates render as the reference library renders them; what they may do is limited."""

from datetime import datetime
from typing import Any

import pytest
from tokenizers import Tokenizer

from outrider_router.text.model_text import ModelText, TextAssets
from outrider_router.text.template import ChatTemplate, Conversation, TemplateError
from tests.support import tiny_tokenizers as tiny

NOW = datetime(2026, 11, 30, 12, 0)
CONVERSATION = [
    {"role": "system", "content": "  Be brief. "},
    {"role": "user", "content": 'Größe of 東京 & "quotes" <b>?\n\n'},
    {"role": "assistant", "content": "<think>hm</think>\nParis"},
    {"role": "user", "content": " thanks 🎉 "},
]
TRIMMING = """{{- bos_token }}
{%- for message in messages %}
    {%- if message['role'] == 'system' and not loop.first %}{% continue %}{% endif %}
    {{- '<|im_start|>' + message['role'] + '\n' + message['content'] | trim + eos_token + '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""
REASONING = """{%- set state = namespace(last=0) %}
{%- for message in messages %}
{%- if message.role == 'user' %}{% set state.last = loop.index0 %}{% endif %}
{%- endfor %}
{% for message in messages %}
    {% if message.role == 'assistant' %}
<|im_start|>assistant
{% generation %}{{ message.content.split('</think>')[-1].lstrip('\\n') }}{% endgeneration %}
    {% else %}
{{ message | tojson(indent=2) }}{{ state.last }}
    {% endif %}
{% endfor %}
{% if tools is defined and tools %}never{% endif %}
{{- strftime_now('%Y') | length }}"""


@pytest.fixture(scope="module")
def oracle() -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=Tokenizer.from_str(tiny.byte_level_json().decode()),
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
    )


@pytest.mark.parametrize("source", [tiny.CHATML, TRIMMING, REASONING])
@pytest.mark.parametrize("add_generation_prompt", [True, False])
def test_text_and_ids_equal_the_reference_librarys(
    oracle: Any, source: str, add_generation_prompt: bool
) -> None:
    text = ModelText(
        TextAssets(tiny.byte_level_json(), tiny.tokenizer_config_json(), source), lambda: NOW
    )
    options = {"chat_template": source, "add_generation_prompt": add_generation_prompt}
    rendered = oracle.apply_chat_template(CONVERSATION, tokenize=False, **options)
    template = ChatTemplate(source, tiny.TOKENIZER_CONFIG, lambda: NOW)
    assert (
        template.render(Conversation(CONVERSATION, add_generation_prompt=add_generation_prompt))
        == rendered
    )
    plain = [
        message | {"content": message["content"].replace("<think>hm</think>", "")}
        for message in CONVERSATION
    ]
    ids = oracle.apply_chat_template(plain, tokenize=True, return_dict=False, **options)
    assert (
        text.encode_chat(Conversation(plain, add_generation_prompt=add_generation_prompt)).ids
        == ids
    )


def render(source: str) -> str:
    return ChatTemplate(source, {}, lambda: NOW).render(
        Conversation([{"role": "user", "content": "x"}])
    )


def test_time_is_the_one_given() -> None:
    assert render("{{ strftime_now('%d %b %Y') }}") == "30 Nov 2026"


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('no such role') }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ dict.__globals__.keys() }}",
        "{% set n = namespace(__class__=1) %}",
        "{{ messages[0].content + 1 }}",
        "{{ 1 // 0 }}",
        "{{ range(10 ** 9) | length }}",
        "{{ nothing.at.all }}",
    ],
)
def test_what_templates_must_not_do_is_an_error_of_theirs(source: str) -> None:
    with pytest.raises(TemplateError, match="chat template failed"):
        render(source)


def test_broken_source_is_refused_at_once() -> None:
    with pytest.raises(TemplateError, match="does not compile"):
        ChatTemplate("{% for %}", {}, lambda: NOW)


def test_template_of_the_tokenizer_config_is_used_where_no_other_is() -> None:
    with_config = TextAssets(tiny.byte_level_json(), tiny.tokenizer_config_json(), "")
    text = ModelText(with_config, lambda: NOW)
    ids = text.encode_chat(Conversation([{"role": "user", "content": "hi"}])).ids
    assert text.tokenizer.decode(ids).endswith("<|im_start|>assistant\n")
