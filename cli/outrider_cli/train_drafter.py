"""`outrider train-drafter`: a drafter for a model, trained on that model's own answers."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from outrider_cli.errors import CommandError
from outrider_cli.launch import missing_package
from outrider_cli.models import model_for_workers

if TYPE_CHECKING:
    from outrider_worker.model.loader import LoadedModel
    from outrider_worker.train.run import Training

DEFAULT_KIND = "mtp-eagle"
_INTERRUPTED = 130
_DATE = datetime(2026, 1, 1)
"""What templates that print a date are told: the same whenever a run is gone on with."""


@dataclass(frozen=True)
class TrainOptions:
    """Flags of `outrider train-drafter`; names and defaults are those of the flags."""

    target: str
    out: Path
    kind: str = DEFAULT_KIND
    prompts_file: Path | None = None
    prompt_count: int = 1920
    own_prompts: int = 1280
    answer_tokens: int = 160
    steps: int = 600
    draft_vocab: int = 4096
    seats: int = 32
    device: str = "auto"
    precision: str = "auto"
    threads: int | None = None
    seed: int = 0


def train_drafter(options: TrainOptions) -> None:
    """Runs all stages and says how they go; a run that was stopped is gone on with.

    Ctrl-C ends it with exit code 130 and says so.

    Raises:
        CommandError: an unknown kind, no such target, files that cannot be used or are another
            run's, packages that are missing.
    """
    try:
        # Late: torch takes seconds and may not be installed.
        import torch

        from outrider_worker.model import ModelError
        from outrider_worker.train import dataset, own_prompts, prompts, run, trainer
    except ModuleNotFoundError as error:
        raise missing_package(error, "worker") from error
    torch.set_num_threads(options.threads or os.cpu_count() or 1)
    faults = (
        ModelError,
        dataset.DatasetError,
        prompts.PromptFileError,
        own_prompts.OwnPromptsError,
        trainer.CheckpointError,
        OSError,
        ValueError,
    )
    try:
        training = _training(options)
        target = _load(options.target, training.device)
        run.train_drafter(training, target, ChatText(target.folder), typer.echo)
    except faults as error:
        raise CommandError(str(error)) from error
    except KeyboardInterrupt:
        typer.echo("outrider: stopped; the same command goes on from where it was", err=True)
        raise typer.Exit(_INTERRUPTED) from None


class ChatText:
    """The text side of the target in a folder, exactly as the router makes it (a Chat)."""

    def __init__(self, folder: Path) -> None:
        from outrider_router.text.model_text import ModelText, TextAssets
        from outrider_worker.rpc.describe import chat_template

        tokenizer, config = folder / "tokenizer.json", folder / "tokenizer_config.json"
        assets = TextAssets(
            tokenizer=tokenizer.read_bytes(),
            tokenizer_config=config.read_bytes() if config.exists() else b"",
            chat_template=chat_template(folder),
        )
        self._text = ModelText(assets, lambda: _DATE)

    def encode(self, message: str) -> Sequence[int]:
        """See Chat."""
        from outrider_router.text.template import Conversation

        chat = Conversation([{"role": "user", "content": message}])
        return self._text.encode_chat(chat).ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """See Chat."""
        return self._text.tokenizer.decode(token_ids)


def _training(options: TrainOptions) -> "Training":
    from outrider_worker.assembly import choose_device
    from outrider_worker.train.generate import AnswerPlan
    from outrider_worker.train.kinds import KINDS
    from outrider_worker.train.own_prompts import OwnPromptsPlan
    from outrider_worker.train.prompts import builtin_prompts, read_prompts
    from outrider_worker.train.recipe import Recipe
    from outrider_worker.train.run import Training

    if options.kind not in KINDS:
        raise CommandError(f"unknown kind {options.kind!r}: choose one of {', '.join(KINDS)}")
    if options.out.exists() and not options.out.is_dir():
        raise CommandError(f"{options.out} is no folder")
    own = read_prompts(options.prompts_file) if options.prompts_file else []
    device = str(choose_device(options.device))
    return Training(
        kind=KINDS[options.kind],
        folder=options.out,
        prompts=[*own, *builtin_prompts(options.prompt_count, options.seed)],
        own=OwnPromptsPlan(options.own_prompts, seed=options.seed),
        plan=AnswerPlan(answer_tokens=options.answer_tokens, seed=options.seed),
        recipe=Recipe(
            steps=options.steps,
            draft_vocab=options.draft_vocab,
            bfloat16=_in_bfloat16(options.precision, device),
            seed=options.seed,
        ),
        seats=options.seats,
        device=device,
    )


def _in_bfloat16(precision: str, device: str) -> bool:
    from outrider_worker.train.products import has_bfloat16_units

    return has_bfloat16_units(device) if precision == "auto" else precision == "bfloat16"


def _load(target: str, device: str) -> "LoadedModel":
    import torch

    from outrider_worker.model import resolve_model
    from outrider_worker.model.loader import load_model

    path = resolve_model(model_for_workers(target))
    typer.echo(f"loading {target}")
    return load_model(path, torch.float32, device)
