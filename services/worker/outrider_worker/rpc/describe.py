"""What a replica says of itself, and the files it hands out."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outrider.worker.v1 import worker_pb2 as wire
from outrider_worker.model.config import ModelError
from outrider_worker.replica import Replica
from outrider_worker.rpc.options import GRAMMAR_OPTION, OPTIONS
from outrider_worker.wire import identity_to_wire, limits_to_wire, traits_to_wire


def describe(replica: Replica, template: str, grammars: bool) -> wire.DescribeResponse:
    """The answer to Describe: the model, its limits, what works, readiness and load.

    template: `chat_template` of its folder. grammars: whether answers can be held to a grammar.
    """
    config = replica.config
    reason = replica.not_ready_reason()
    response = wire.DescribeResponse(
        model=replica.served_name,
        architecture=config.architecture,
        vocab_size=config.vocab_size,
        limits=limits_to_wire(replica.limits, replica.max_draft_tokens, replica.kv_capacity_tokens),
        eos_token_ids=config.eos_ids,
        chat_template=template,
        drafters=[traits_to_wire(traits) for traits in replica.drafters],
        supported_options=[*OPTIONS, *([GRAMMAR_OPTION] if grammars else [])],
        worker_incarnation=replica.incarnation,
        ready=not reason,
        not_ready_reason=reason,
        identity=identity_to_wire(replica.identity),
        deployment=replica.deployment,
        load=wire.WorkerLoad(
            running_requests=replica.running_requests(),
            waiting_requests=replica.waiting_requests(),
            kv_used_tokens=replica.kv_used_tokens(),
            kv_capacity_tokens=replica.kv_capacity_tokens,
        ),
    )
    if config.bos_id is not None:
        response.bos_token_id = config.bos_id
    return response


def chat_template(folder: Path) -> str:
    """The Jinja source, from either place the Hugging Face layout knows; empty if none.

    Raises:
        ModelError: the file that should hold it cannot be read.
    """
    file, settings = folder / "chat_template.jinja", folder / "tokenizer_config.json"
    try:
        if file.exists():
            return file.read_text(encoding="utf-8")
        if settings.exists():
            return _default_template(json.loads(settings.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"no chat template can be read from {folder}: {error}") from error
    return ""


def _default_template(settings: Mapping[str, Any]) -> str:
    """Of several named ones, the default is what chat completions use."""
    template = settings.get("chat_template") or ""
    if isinstance(template, list):
        template = {entry["name"]: entry["template"] for entry in template}.get("default", "")
    if not isinstance(template, str):
        raise TypeError(f"chat_template must be text, not {template!r}")
    return template


def asset_bytes(folder: Path, kind: "wire.AssetKind.ValueType") -> bytes:
    """The content of an asset.

    Raises:
        FileNotFoundError: this model has no such file.
        ValueError: the kind is unknown.
    """
    if kind == wire.ASSET_KIND_CHAT_TEMPLATE:
        return chat_template(folder).encode()
    names = {
        wire.ASSET_KIND_TOKENIZER: "tokenizer.json",
        wire.ASSET_KIND_TOKENIZER_CONFIG: "tokenizer_config.json",
    }
    name = names.get(kind)
    if name is None:
        raise ValueError(f"unknown asset kind {kind}")
    if not (folder / name).exists():
        raise FileNotFoundError(f"this model has no {name}")
    return (folder / name).read_bytes()
