"""Predicted outputs (`prediction`): what the client expects, as text and then as tokens.

A prediction changes speed, never text, so it goes together with every other field.
"""

from functools import partial
from typing import Any

from outrider_router.openai.errors import invalid
from outrider_router.openai.messages import text_of
from outrider_router.openai.prompts import refuse_hopeless
from outrider_router.routing.registry import ServedModel
from outrider_router.state import RouterState
from outrider_router.text.pieces import TooManyTokens

PARAM = "prediction"
OPTION = "prediction_ids"
"""What a worker that takes predictions lists among its options."""


def prediction_text(value: Any) -> str:
    """The predicted text; empty where nothing is predicted.

    Raises:
        ApiError: 400, naming the place at fault.
    """
    if value is None:
        return ""
    if not isinstance(value, dict):
        raise invalid(f"{PARAM} must be an object", PARAM)
    if value.get("type") != "content":
        raise invalid(f"{PARAM}.type must be 'content'", f"{PARAM}.type")
    return text_of(value.get("content"), f"{PARAM}.content")


async def encode_prediction(state: RouterState, model: ServedModel, text: str) -> tuple[int, ...]:
    """The tokens of a predicted text, made off the event loop.

    Raises:
        ApiError: 400 for one that no answer within the context can hold, or outside the vocabulary.
    """
    if not text:
        return ()
    limit = min(model.context_tokens, state.settings.max_prediction_tokens)
    try:
        refuse_hopeless(model, len(text), limit)
        encode = partial(model.text.encode_answer, text, limit)
        ids = await state.in_text_thread(encode, characters=len(text))
    except TooManyTokens as error:
        raise invalid(f"the prediction is longer than {limit} tokens", PARAM) from error
    if max(ids, default=0) >= model.vocab_size:
        raise invalid("the prediction has a token outside the vocabulary", PARAM)
    return tuple(ids)
