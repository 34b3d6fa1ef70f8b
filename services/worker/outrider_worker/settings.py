"""The worker's settings, from the environment (`OUTRIDER_WORKER_…`)."""

import os
import re
from typing import Literal

from pydantic import Field, field_validator, model_validator

from outrider_runtime.settings import ServiceSettings, settings_config
from outrider_worker.planner_client.targets import parse_targets
from outrider_worker.speculate.drafter import NO_DRAFTER


class WorkerSettings(ServiceSettings):
    """Frozen after construction; every field can be set by environment."""

    model_config = settings_config("OUTRIDER_WORKER_")

    host: str = Field("127.0.0.1", description="Where the gRPC and metrics ports listen.")
    port: int = Field(7080, ge=0, le=65535)
    metrics_port: int = Field(7180, ge=0, le=65535)
    model: str = Field("demo", description="Folder, GGUF file, 'demo' or hub id.")
    served_name: str = Field("", description="Name clients use; empty = derived from the model.")
    deployment: str = Field("", description="Statistics are shared by name; empty = the model's.")
    planner: str = Field(
        "127.0.0.1:7070",
        description="host:port, or several with commas between; empty = no planner, plans off.",
    )
    drafter: str = Field(
        "ngram,predicted",
        description="Those that draft, with commas between: ngram, suffix, predicted, a plug-in;"
        " one of head (the one shipped for the model), a trained head's folder, mtp, draft:MODEL;"
        " or none.",
    )
    max_draft: int = Field(8, ge=0, le=64, description="Draft tokens at most, K.")
    verifier: Literal["sampler_match", "rejection", "relaxed"] = Field(
        "sampler_match",
        description="Sampler match: a seed's text depends on nothing else. Rejection: more drafts"
        " hold at high temperatures, a seed's text depends on the plan. Relaxed: lossy while the"
        " model thinks.",
    )
    relaxed_top: int = Field(10, ge=1, description="Relaxed drafts are among so many likeliest,")
    relaxed_delta: float = Field(0.6, ge=0, le=1, description="and so much less likely at most.")
    think_open: str = Field("<think>", description="The token that begins thinking.")
    think_close: str = Field("</think>", description="The token that ends it.")
    guard: bool = Field(True, description="Bound what speculation may cost, whatever is planned.")
    max_running: int = Field(32, ge=1, le=1024)
    max_waiting: int = Field(256, ge=0)
    context: int = Field(2048, ge=16, description="Tokens of prompt and answer together.")
    kv_gib: float = Field(1.0, gt=0)
    max_rows: int = Field(128, ge=1, description="Rows of one forward at most.")
    prefill_chunk: int = Field(128, ge=1, description="Prompt tokens of one forward at most.")
    max_waiting_tokens: int = Field(262_144, ge=1, description="Prompt tokens that may wait.")
    prefix_cache: bool = Field(True, description="Keep the K/V of prompts for those that follow.")
    logprobs: Literal["raw", "processed"] = Field(
        "raw", description="Of the target itself, or behind penalties, bias, bans and grammar."
    )
    grammar_limit_s: float = Field(
        5.0, gt=0, le=60, description="Time for a request's grammar to compile."
    )
    device: str = Field("auto", description="'auto', 'cpu' or 'cuda'.")
    threads: int = Field(default_factory=lambda: os.cpu_count() or 1, ge=1)
    drain_limit_s: float = Field(30.0, ge=0, description="How long SIGTERM waits for requests.")

    @field_validator("planner")
    @classmethod
    def _addresses(cls, value: str) -> str:
        return ",".join(parse_targets(value))

    @field_validator("drafter")
    @classmethod
    def _drafters(cls, value: str) -> str:
        names = [name.strip() for name in value.split(",")]
        if not all(names):
            raise ValueError("a name is missing: 'none' stands for no drafter")
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"{', '.join(sorted(twice))} is named twice")
        if NO_DRAFTER in names and len(names) > 1:
            raise ValueError(f"{NO_DRAFTER!r} stands alone: leave it out, or the others")
        return ",".join(names)

    @field_validator("device")
    @classmethod
    def _device(cls, value: str) -> str:
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", value):
            raise ValueError(f"must be 'auto', 'cpu', 'cuda' or 'cuda:N', not {value!r}")
        return value

    @model_validator(mode="after")
    def _enough_rows(self) -> "WorkerSettings":
        if self.max_running > self.max_rows:
            raise ValueError(
                f"OUTRIDER_WORKER_MAX_ROWS: must be OUTRIDER_WORKER_MAX_RUNNING"
                f" ({self.max_running}) at least, not {self.max_rows}"
            )
        return self

    @property
    def drafters(self) -> tuple[str, ...]:
        """Names, in order of preference."""
        return tuple(self.drafter.split(","))

    @property
    def kv_bytes(self) -> int:
        return int(self.kv_gib * 2**30)
