"""Finding the model a request names and turning its prompt into tokens, off the event loop."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from outrider_router.openai.dialect import Encoded, Prompt, Reader
from outrider_router.openai.errors import ApiError, invalid, too_long
from outrider_router.routing.registry import NoWorker, Registry, ServedModel, UnknownModel
from outrider_router.state import RouterState
from outrider_router.text.control import MaskError
from outrider_router.text.model_text import ModelText
from outrider_router.text.pieces import TooManyTokens
from outrider_router.text.template import TemplateError

# A prompt of which only the end is kept is encoded whole, which takes time as its length does.
_MOST_CONTEXTS, _ALWAYS_CUT_TOKENS = 4, 32_768
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
    param, size = reader.prompt_param, reader.characters(source)
    most = _most_tokens(model, keep_tokens)
    try:
        refuse_hopeless(model, size, most)
        encode = partial(_encode, reader, model.text, source, most, keep_tokens)
        short = reader.is_short(source)
        encoded = encode() if short else await state.in_text_thread(encode, characters=size)
    except (TemplateError, MaskError) as error:
        raise invalid(str(error), param) from error
    except TooManyTokens as error:
        if keep_tokens is None:
            raise too_long(error.told, model.context_tokens, param) from error
        text = f"the prompt has {error.told} tokens; it is not cut if it has more than {most}"
        raise invalid(text, param, "context_length_exceeded") from error
    _check_ids(encoded.ids, model, param)
    return encoded


def _most_tokens(model: ServedModel, keep_tokens: int | None) -> int:
    """What a prompt may have before it is cut, if it is to be cut."""
    if keep_tokens is None:
        return model.context_tokens - 1
    return max(model.context_tokens * _MOST_CONTEXTS, _ALWAYS_CUT_TOKENS)


def _check_ids(ids: Sequence[int], model: ServedModel, param: str) -> None:
    if not ids:
        raise invalid("the prompt is empty", param)
    if len(ids) >= model.context_tokens:
        raise too_long(len(ids), model.context_tokens, param)
    if max(ids) >= model.vocab_size:
        raise invalid("the prompt has a token outside the vocabulary", param)


def _encode(
    reader: Reader[Prompt], text: ModelText, source: Prompt, most_tokens: int, keep: int | None
) -> Encoded:
    """The prompt, or its end of `keep` tokens, which has no text of its own any more."""
    whole = reader.encode(text, source, most_tokens)
    if keep is None or len(whole.ids) <= keep:
        return whole
    return replace(whole, ids=whole.ids[-keep:], text=None)


async def with_texts(
    state: RouterState, model: ServedModel, prompts: Sequence[Encoded]
) -> Sequence[Encoded]:
    """The prompts, those without a text with the one that their tokens make."""
    if all(prompt.text is not None for prompt in prompts):
        return prompts
    return await state.in_text_thread(_with_texts, model, prompts)


def _with_texts(model: ServedModel, prompts: Sequence[Encoded]) -> list[Encoded]:
    decode = model.text.tokenizer.decode
    return [p if p.text is not None else replace(p, text=decode(p.ids)) for p in prompts]


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


def refuse_hopeless(model: ServedModel, characters: int, most_tokens: int) -> None:
    """Refuse a text that cannot fit, before it is encoded: that takes time as its length does.

    Raises:
        TooManyTokens: it certainly has more than `most_tokens`.
    """
    least = model.text.least_tokens(characters)
    if least > most_tokens:
        raise TooManyTokens(f"more than {least - 1}")
