"""`/tokenize` and `/detokenize`, in the shape that benchmark tools know."""

from typing import Any

from outrider_router.openai.errors import invalid
from outrider_router.openai.messages import template_messages
from outrider_router.openai.prompts import served_model
from outrider_router.openai.schema import DetokenizeBody, TokenizeBody, parse
from outrider_router.routing.registry import ServedModel
from outrider_router.state import RouterState
from outrider_router.text.control import MaskError
from outrider_router.text.template import TemplateError


async def tokenize(state: RouterState, value: Any) -> dict[str, Any]:
    """Token ids of a prompt or of messages in the model's template.

    Raises:
        ApiError: 400, 404 or 503.
    """
    body = parse(TokenizeBody, value)
    if (body.prompt is None) is (body.messages is None):
        raise invalid("give either prompt or messages", "prompt")
    model = served_model(state.registry, body.model)
    try:
        ids = await state.in_text_thread(_encode, model, body)
    except (TemplateError, MaskError) as error:
        raise invalid(str(error), "messages") from error
    spelled = [model.text.tokenizer.token_text(token_id) for token_id in ids]
    return {
        "count": len(ids),
        "max_model_len": model.context_tokens,
        "tokens": ids,
        "token_strs": spelled if body.return_token_strs else None,
    }


async def detokenize(state: RouterState, value: Any) -> dict[str, Any]:
    """Text of token ids, control tokens shown.

    Raises:
        ApiError: 400, 404 or 503.
    """
    body = parse(DetokenizeBody, value)
    model = served_model(state.registry, body.model)
    if any(token_id >= model.vocab_size for token_id in body.tokens):
        raise invalid("tokens names a token outside the vocabulary", "tokens")
    text = await state.in_text_thread(model.text.tokenizer.decode, body.tokens)
    return {"prompt": text}


def _encode(model: ServedModel, body: TokenizeBody) -> list[int]:
    if body.messages is not None:
        opens_answer = body.add_generation_prompt is not False
        return model.text.encode_chat(template_messages(body.messages), opens_answer)
    with_special = body.add_special_tokens is not False
    return model.text.encode_prompt(body.prompt or "", with_special)
