"""What a replica says of itself, and the files it hands out."""

import json
from pathlib import Path

from outrider.worker.v1 import worker_pb2 as wire
from outrider_worker.replica import Replica
from outrider_worker.rpc.options import GRAMMAR_OPTION, OPTIONS
from outrider_worker.wire import identity_to_wire, limits_to_wire, traits_to_wire


def describe(replica: Replica, grammars: bool) -> wire.DescribeResponse:
    """The answer to Describe: the model, its limits, what works, readiness and load.

    grammars: whether answers can be held to a grammar.
    """
    config = replica.config
    reason = replica.not_ready_reason()
    response = wire.DescribeResponse(
        model=replica.served_name,
        architecture=config.architecture,
        vocab_size=config.vocab_size,
        limits=limits_to_wire(replica.limits, replica.max_draft_tokens, replica.kv_capacity_tokens),
        eos_token_ids=config.eos_ids,
        chat_template=chat_template(replica.folder),
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
    """The Jinja source, from either place the Hugging Face layout knows; empty if none."""
    file = folder / "chat_template.jinja"
    if file.exists():
        return file.read_text()
    config_file = folder / "tokenizer_config.json"
    if not config_file.exists():
        return ""
    template = json.loads(config_file.read_text()).get("chat_template", "")
    if isinstance(template, list):
        # Several named templates: the default one is what chat completions use.
        named = {entry["name"]: entry["template"] for entry in template}
        template = named.get("default", "")
    return template or ""


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
