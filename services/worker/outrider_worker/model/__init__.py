"""Models: configuration, files, architectures."""

from outrider_worker.model.base import CausalLM
from outrider_worker.model.config import ModelConfig, ModelError
from outrider_worker.model.loader import LoadedModel, load_model
from outrider_worker.model.resolve import resolve_model

__all__ = ["CausalLM", "LoadedModel", "ModelConfig", "ModelError", "load_model", "resolve_model"]
