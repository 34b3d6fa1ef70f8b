"""`/tokenize` and `/detokenize`, in the shape that benchmark tools know.

Both work beside the event loop, in a place among the requests in flight, and count among the
requests of their key; what certainly does not fit into the model's context is refused before that.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from outrider_router.access.tenant import Overloaded, Tenant
from outrider_router.openai.errors import invalid, overloaded, shutting_down, too_long
from outrider_router.openai.messages import template_messages, template_variables
from outrider_router.openai.prompts import refuse_hopeless, served_model
from outrider_router.openai.schema import DetokenizeBody, TokenizeBody, parse
from outrider_router.openai.tools import rendered_tools
from outrider_router.routing.registry import ServedModel
from outrider_router.state import RouterState
from outrider_router.text.control import MaskError
from outrider_router.text.model_text import texts_in
from outrider_router.text.pieces import TooManyTokens
from outrider_router.text.template import Conversation, TemplateError

Result = TypeVar("Result")


async def tokenize(state: RouterState, tenant: Tenant, value: Any) -> dict[str, Any]:
    """Token ids of a prompt or of messages in the model's template.

    Raises:
        ApiError: 400, 404, 429 or 503.
    """
    body = parse(TokenizeBody, value, state.settings.caps)
    if (body.prompt is None) is (body.messages is None):
        raise invalid("give either prompt or messages", "prompt")
    model = served_model(state.registry, body.model)
    chat = None if body.messages is None else _conversation(body, body.messages)
    param = "prompt" if chat is None else "messages"
    source = body.prompt if chat is None else [chat.messages, chat.tools, chat.variables]
    size = sum(map(len, texts_in(source)))
    try:
        refuse_hopeless(model, size, model.context_tokens)
        return await _in_place(state, tenant, partial(_tokens, model, body, chat), size)
    except (TemplateError, MaskError) as error:
        raise invalid(str(error), param) from error
    except TooManyTokens as error:
        raise too_long(error.told, model.context_tokens, param) from error


async def detokenize(state: RouterState, tenant: Tenant, value: Any) -> dict[str, Any]:
    """Text of token ids, control tokens shown.

    Raises:
        ApiError: 400, 404, 429 or 503.
    """
    body = parse(DetokenizeBody, value)
    model = served_model(state.registry, body.model)
    if len(body.tokens) > model.context_tokens:
        most = f"at most {model.context_tokens}, the model's context, are turned into text"
        text = f"{len(body.tokens)} tokens are too many: {most}"
        raise invalid(text, "tokens", "context_length_exceeded")
    if max(body.tokens, default=0) >= model.vocab_size:
        raise invalid("tokens names a token outside the vocabulary", "tokens")
    decode = partial(model.text.tokenizer.decode, body.tokens)
    return {"prompt": await _in_place(state, tenant, decode)}


async def _in_place(
    state: RouterState, tenant: Tenant, work: Callable[[], Result], characters: int = 0
) -> Result:
    """Work in a text thread while holding a place; 429 where none is free, 503 at the end."""
    if state.draining:
        raise shutting_down()
    try:
        with state.gate.errand(tenant):
            return await state.in_text_thread(work, characters=characters)
    except Overloaded as error:
        raise overloaded(error) from error


def _conversation(body: TokenizeBody, messages: Sequence[Any]) -> Conversation:
    going_on = bool(body.continue_final_message)
    return Conversation(
        template_messages(messages),
        rendered_tools(body.tools),
        template_variables(body.chat_template_kwargs),
        not going_on and body.add_generation_prompt is not False,
        going_on,
    )


def _tokens(model: ServedModel, body: TokenizeBody, chat: Conversation | None) -> dict[str, Any]:
    """The answer; a null field of the body counts as absent, and both flags default to true."""
    if chat is None:
        special = body.add_special_tokens is not False
        ids = model.text.encode_prompt(body.prompt or "", special, model.context_tokens)
    else:
        ids = model.text.encode_chat(chat, model.context_tokens).ids
    spell = model.text.tokenizer.token_text
    return {
        "count": len(ids),
        "max_model_len": model.context_tokens,
        "tokens": ids,
        "token_strs": [spell(token_id) for token_id in ids] if body.return_token_strs else None,
    }
