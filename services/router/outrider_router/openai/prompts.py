"""Finding the model a request names and turning its prompt into tokens, off the event loop."""

from outrider_router.openai.dialect import Prompt, Reader
from outrider_router.openai.errors import ApiError, invalid, too_long
from outrider_router.routing.registry import NoWorker, Registry, ServedModel, UnknownModel
from outrider_router.state import RouterState
from outrider_router.text.control import MaskError
from outrider_router.text.template import TemplateError


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
    state: RouterState, model: ServedModel, reader: Reader[Prompt], source: Prompt
) -> list[int]:
    """Token ids of a prompt that leaves room in the context.

    Raises:
        ApiError: 400 for a prompt that is empty, too long, outside the vocabulary, or that the
            model's template refuses.
    """
    param = reader.prompt_param
    refuse_hopeless(model, reader.characters(source), param)
    try:
        ids = await state.in_text_thread(reader.encode, model.text, source)
    except (TemplateError, MaskError) as error:
        raise invalid(str(error), param) from error
    if not ids:
        raise invalid("the prompt is empty", param)
    if len(ids) >= model.context_tokens:
        raise too_long(len(ids), model.context_tokens, param)
    if max(ids) >= model.vocab_size:
        raise invalid("the prompt has a token outside the vocabulary", param)
    return ids


def refuse_hopeless(model: ServedModel, characters: int, param: str) -> None:
    """Refuse a text that cannot fit, before it is encoded: that takes time as its length does.

    Raises:
        ApiError: 400.
    """
    least = model.text.least_tokens(characters)
    if least >= model.context_tokens:
        raise too_long(f"more than {least}", model.context_tokens, param)
