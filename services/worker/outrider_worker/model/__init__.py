"""Models: configuration, files, architectures."""

from .base import CausalLM
from .config import ModelConfig, ModelError
from .loader import LoadedModel, load_model
from .resolve import resolve_model

__all__ = ["CausalLM", "LoadedModel", "ModelConfig", "ModelError", "load_model", "resolve_model"]
