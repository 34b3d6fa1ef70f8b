"""`/tokenize` and `/detokenize`, in the shape that benchmark tools know.

Both take a place among the requests in flight and work beside the event loop; what certainly does
not fit into the model's context is refused before that.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from outrider_router.admission import Overloaded
from outrider_router.openai.errors import ApiError, invalid, too_long
from outrider_router.openai.messages import template_messages
from outrider_router.openai.prompts import refuse_hopeless, served_model
from outrider_router.openai.schema import DetokenizeBody, TokenizeBody, parse
from outrider_router.routing.registry import ServedModel
from outrider_router.state import RouterState
from outrider_router.text.control import MaskError
from outrider_router.text.model_text import texts_in
from outrider_router.text.template import TemplateError

Result = TypeVar("Result")


async def tokenize(state: RouterState, value: Any) -> dict[str, Any]:
    """Token ids of a prompt or of messages in the model's template.

    Raises:
        ApiError: 400, 404, 429 or 503.
    """
    body = parse(TokenizeBody, value)
    if (body.prompt is None) is (body.messages is None):
        raise invalid("give either prompt or messages", "prompt")
    model = served_model(state.registry, body.model)
    messages = None if body.messages is None else template_messages(body.messages)
    source, param = (body.prompt, "prompt") if messages is None else (messages, "messages")
    refuse_hopeless(model, sum(map(len, texts_in(source))), param)
    try:
        return await _in_place(state, _tokens, model, body, messages)
    except (TemplateError, MaskError) as error:
        raise invalid(str(error), param) from error


async def detokenize(state: RouterState, value: Any) -> dict[str, Any]:
    """Text of token ids, control tokens shown.

    Raises:
        ApiError: 400, 404, 429 or 503.
    """
    body = parse(DetokenizeBody, value)
    model = served_model(state.registry, body.model)
    if len(body.tokens) > model.context_tokens:
        raise too_long(len(body.tokens), model.context_tokens, "tokens")
    if max(body.tokens, default=0) >= model.vocab_size:
        raise invalid("tokens names a token outside the vocabulary", "tokens")
    return {"prompt": await _in_place(state, model.text.tokenizer.decode, body.tokens)}


async def _in_place(state: RouterState, work: Callable[..., Result], *args: Any) -> Result:
    """Work in a text thread while holding a place; 429 where none is free."""
    try:
        with state.admission.admit(1):
            return await state.in_text_thread(work, *args)
    except Overloaded as error:
        raise ApiError(429, str(error)) from error


def _tokens(
    model: ServedModel, body: TokenizeBody, messages: list[dict[str, Any]] | None
) -> dict[str, Any]:
    """The answer; a null field of the body counts as absent, and both flags default to true."""
    if messages is None:
        ids = model.text.encode_prompt(body.prompt or "", body.add_special_tokens is not False)
    else:
        ids = model.text.encode_chat(messages, body.add_generation_prompt is not False)
    spell = model.text.tokenizer.token_text
    return {
        "count": len(ids),
        "max_model_len": model.context_tokens,
        "tokens": ids,
        "token_strs": [spell(token_id) for token_id in ids] if body.return_token_strs else None,
    }
