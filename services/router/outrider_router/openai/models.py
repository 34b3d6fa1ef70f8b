"""`/v1/models`: what is served right now."""

from typing import Any

from outrider_router.openai import prediction
from outrider_router.routing.registry import ServedModel


def model_object(model: ServedModel) -> dict[str, Any]:
    """One entry; `speculation` has what a request's field of that name may ask for."""
    return {
        "id": model.name,
        "object": "model",
        "created": model.created_s,
        "owned_by": "outrider",
        "max_model_len": model.context_tokens,
        "speculation": {
            "drafters": list(model.drafters),
            "max_draft": model.max_draft_tokens,
            "prediction": prediction.OPTION in model.options,
        },
    }


def model_list(models: list[ServedModel]) -> dict[str, Any]:
    """The whole list."""
    return {"object": "list", "data": [model_object(model) for model in models]}
