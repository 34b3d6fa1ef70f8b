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


SUFFIXED = (
    "{% for m in messages %}{{ m.role }}: {{ m.content | trim }}\n### End of turn\n{% endfor %}"
)


@pytest.mark.parametrize("as_the_library", [True, False])
@pytest.mark.parametrize("content", ["e", "end", "im", "End of turn", "_", "\ue000", "Hello, \n"])
@pytest.mark.parametrize(
    ("source", "opening"), [(tiny.CHATML, "<|im_start|>assistant\n"), (SUFFIXED, "assistant: ")]
)
def test_a_prompt_goes_on_behind_its_last_message_whatever_the_template_says_next(
    source: str, opening: str, content: str, as_the_library: bool
) -> None:
    assets = TextAssets(tiny.byte_level_json(), tiny.tokenizer_config_json(), source)
    text = ModelText(assets, lambda: NOW, control_tokens_in_content=as_the_library)
    said = [{"role": "user", "content": "q"}, {"role": "assistant", "content": content}]
    chat = Conversation(said, add_generation_prompt=False, continue_final_message=True)
    prompt = text.tokenizer.decode(text.encode_chat(chat).ids)
    assert prompt.endswith(opening + content.strip())


@pytest.mark.parametrize(("source", "content"), [(tiny.CHATML, " \n"), ("{{ 1 }}", "left out")])
def test_what_has_no_content_cannot_be_continued(source: str, content: str) -> None:
    text = ModelText(TextAssets(tiny.byte_level_json(), b"", source), lambda: NOW)
    chat = Conversation([{"role": "user", "content": content}], continue_final_message=True)
    with pytest.raises(TemplateError, match="no content that could be continued"):
        text.encode_chat(chat)


def test_letters_for_the_mark_may_run_out() -> None:
    text = ModelText(TextAssets(tiny.byte_level_json(), b"", tiny.CHATML), lambda: NOW)
    letters = "".join(map(chr, range(0xE000, 0xF900)))
    chat = Conversation([{"role": "user", "content": letters}], continue_final_message=True)
    with pytest.raises(TemplateError, match="private-use"):
        text.encode_chat(chat)
