"""Finding the model a request names and turning its prompt into tokens, off the event loop."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from outrider_router.openai.dialect import Encoded, Prompt, Reader
from outrider_router.openai.errors import ApiError, invalid, too_long
from outrider_router.routing.registry import NoWorker, Registry, ServedModel, UnknownModel
from outrider_router.state import RouterState
from outrider_router.text.control import MaskError
from outrider_router.text.template import TemplateError
from outrider_router.text.tokenizer import TooManyTokens

_MAX_BAD_WORD_TOKENS = 32  # the contract's limit


def served_model(registry: Registry, name: str) -> ServedModel:
    """The model of that name.

    Raises:
        ApiError: 404 for one that nobody serves, 503 if no worker is ready.
    """
    try:
        return registry.model(name)
    except UnknownModel:
        text = f"the model {name!r} does not exist"
        raise ApiError(404, text, code="model_not_found", param="model") from None
    except NoWorker as error:
        raise ApiError(503, str(error)) from error


async def encode_prompt(
    state: RouterState,
    model: ServedModel,
    reader: Reader[Prompt],
    source: Prompt,
    keep_tokens: int | None = None,
) -> Encoded:
    """A prompt that leaves room in the context, cut to its last `keep_tokens` if they are given.

    Raises:
        ApiError: 400 for a prompt that is empty, too long, outside the vocabulary, or that the
            model's template refuses.
    """
    param = reader.prompt_param
    most = model.context_tokens - 1 if keep_tokens is None else None
    if most is not None:
        refuse_hopeless(model, reader.characters(source), param)
    try:
        encode = partial(reader.encode, model.text, source, most)
        encoded = encode() if reader.is_short(source) else await state.in_text_thread(encode)
    except (TemplateError, MaskError) as error:
        raise invalid(str(error), param) from error
    except TooManyTokens as error:
        raise too_long(error.told, model.context_tokens, param) from error
    ids = encoded.ids if keep_tokens is None else encoded.ids[-keep_tokens:]
    if not ids:
        raise invalid("the prompt is empty", param)
    if len(ids) >= model.context_tokens:
        raise too_long(len(ids), model.context_tokens, param)
    if max(ids) >= model.vocab_size:
        raise invalid("the prompt has a token outside the vocabulary", param)
    return replace(encoded, ids=ids)


async def encode_bad_words(
    state: RouterState, model: ServedModel, words: Sequence[str]
) -> tuple[tuple[int, ...], ...]:
    """The token sequences that the answer must not hold: each word, and the word behind a blank.

    Raises:
        ApiError: 400 for a word of too many tokens.
    """
    if not words:
        return ()
    sequences = await state.in_text_thread(_spellings, model, words)
    if any(len(sequence) > _MAX_BAD_WORD_TOKENS for sequence in sequences):
        raise invalid(f"a bad word has more than {_MAX_BAD_WORD_TOKENS} tokens", "bad_words")
    return sequences


def _spellings(model: ServedModel, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    texts = [spelling for word in words for spelling in (word.lstrip(), f" {word.lstrip()}")]
    sequences = (tuple(model.text.encode_answer(text)) for text in texts)
    return tuple(dict.fromkeys(filter(None, sequences)))


def refuse_hopeless(model: ServedModel, characters: int, param: str) -> None:
    """Refuse a text that cannot fit, before it is encoded: that takes time as its length does.

    Raises:
        ApiError: 400.
    """
    least = model.text.least_tokens(characters)
    if least >= model.context_tokens:
        raise too_long(f"more than {least}", model.context_tokens, param)
