"""A whole training: answers, vocabulary, a good beginning, steps, evaluation, export.

Everything lies in one folder, and every stage that was finished or interrupted is gone on from:

    own-prompts.json  prompts that the target wrote itself
    data-KIND/        the training set
    checkpoint.pt     how far training is
    head/             the checkpoint to serve, written whenever training has come to its end

Knows: the order of stages. Does not know: any stage's insides, who prints.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from outrider_worker.identity import model_digest
from outrider_worker.model.loader import LoadedModel
from outrider_worker.train.answers import Respondent
from outrider_worker.train.batches import whole
from outrider_worker.train.dataset import Dataset, DatasetSpec, Text, TextInfo
from outrider_worker.train.evaluate import Acceptance, head_acceptance, ngram_acceptance
from outrider_worker.train.export import export
from outrider_worker.train.generate import AnswerPlan, generate
from outrider_worker.train.heads import MtpEagleHead, TrainedHead
from outrider_worker.train.initial import fit_joint
from outrider_worker.train.kinds import Kind
from outrider_worker.train.own_prompts import OWN, Chat, OwnPromptsPlan, own_prompts
from outrider_worker.train.pace import Say, paced
from outrider_worker.train.progress import (
    acceptance_line,
    acceptance_lines,
    generation_line,
    step_line,
    texts_line,
)
from outrider_worker.train.prompts import OUT_OF_FAMILY, Prompt
from outrider_worker.train.recipe import Recipe
from outrider_worker.train.target import TargetWeights
from outrider_worker.train.trainer import StepReport, Trainer, read_checkpoint
from outrider_worker.train.vocabulary import answer_counts, coverage, most_frequent

IN_FAMILY, OWN_PROMPTS, OUT_FAMILY = "in family", "prompts of its own", "out of family"
_SAVED_EVERY_S = 60.0
DRAWN, NGRAM = ", drawn", "n-gram, "
_SETS = [name + how for how in ("", DRAWN) for name in (IN_FAMILY, OWN_PROMPTS, OUT_FAMILY)]


@dataclass(frozen=True)
class Training:
    """What is to be trained, from what, and where."""

    kind: Kind
    folder: Path
    prompts: Sequence[Prompt]
    plan: AnswerPlan = field(default_factory=AnswerPlan)
    recipe: Recipe = field(default_factory=Recipe)
    seats: int = 32
    device: str = "cpu"
    own: OwnPromptsPlan = field(default_factory=OwnPromptsPlan)
    """Prompts of the target's own, behind the others"""


def train_drafter(
    training: Training, target: LoadedModel, chat: Chat, say: Say
) -> Mapping[str, Acceptance]:
    """All stages; returns the acceptance over texts that were held out.

    target: float32, on the training's device. Raises DatasetError, CheckpointError, ModelError,
    OwnPromptsError.
    """
    torch.manual_seed(training.recipe.seed)
    weights = TargetWeights.read(target, training.device)  # refuses what cannot be trained for
    dataset = _answers(training, target, chat, say)
    texts = list(dataset.texts(held_out=False))
    if not texts:
        raise ValueError("all prompts are held out, none is left to train on")
    trainer = _trainer(training, weights, texts, say)
    held_out = _by_set(list(dataset.texts(held_out=True)))
    if not held_out:
        say("no text is held out, so acceptance is not measured: more prompts would have some")
    _train(training, trainer, texts, held_out, say)
    found = _evaluated(training, trainer.head, weights, held_out, say)
    for line in acceptance_lines(found):
        say(line)
    export(trainer.head, training.kind, weights, target.folder, training.folder / "head")
    say(f"exported to {training.folder / 'head'}")
    return found


def _answers(training: Training, target: LoadedModel, chat: Chat, say: Say) -> Dataset:
    """The training set, whole."""
    plan, folder, digest = training.plan, training.folder, model_digest(target.folder)
    boundaries = training.kind.stored(target.config.layers)
    respondent = Respondent(
        target, boundaries, training.seats, plan.context_tokens, device=training.device
    )
    own = own_prompts(folder / "own-prompts.json", digest, respondent, chat, training.own, say)
    prompts = [*training.prompts, *own]
    spec = DatasetSpec(
        target=digest,
        boundaries=boundaries,
        hidden_size=target.config.hidden_size,
        seed=plan.seed,
        prompts=plan.digest(prompts),
    )
    dataset, seldom = Dataset(folder / f"data-{training.kind.name}", spec), paced(say)
    if missing := -(-len(prompts) // plan.prompts_per_shard) - len(dataset.shards()):
        say(f"answers: {missing} shards of {plan.prompts_per_shard} prompts are to be written")
    generate(
        dataset,
        respondent,
        prompts,
        chat.encode,
        plan,
        lambda progress: say(generation_line(progress)),
        lambda *texts: seldom(texts_line(*texts)),
    )
    return dataset


def _trainer(
    training: Training, weights: TargetWeights, texts: Sequence[Text], say: Say
) -> Trainer:
    """At its beginning, or where an interrupted run was."""
    kind, config = training.kind, weights.config
    checkpoint = _checkpoint(training)
    if checkpoint.exists():
        kept_ids = read_checkpoint(checkpoint)["kept_ids"].to(training.device)
    else:
        counts = answer_counts(texts, config.vocab_size)
        size = min(training.recipe.draft_vocab, config.vocab_size)
        kept_ids = most_frequent(counts, size, config.eos_ids).to(training.device)
        say(f"draft vocabulary: {size} tokens, {coverage(counts, kept_ids.cpu()):.1%} of answers")
    head = kind.make(weights, kept_ids).to(training.device)
    trainer = Trainer(head, weights, kind.columns(config), training.recipe)
    if checkpoint.exists():
        trainer.load(checkpoint)
        say(f"going on from step {trainer.steps_done}")
    elif isinstance(head, MtpEagleHead):
        say(f"fitting the beginning to what the target did in {len(texts)} texts")
        batches = whole(texts, training.recipe.texts_per_step, kind.columns(config))
        explained = fit_joint(head, (batch.to(training.device) for batch in batches))
        say(f"beginning fitted to the target: {explained:.0%} of its last block's input explained")
    return trainer


def _train(
    training: Training,
    trainer: Trainer,
    texts: Sequence[Text],
    held_out: Mapping[str, Sequence[Text]],
    say: Say,
) -> None:
    """Step by step, with an evaluation every so often, and checkpoints: a run that is stopped
    loses a minute at most."""
    recipe, times, saved_s = training.recipe, list[float](), time.monotonic()

    def report(step: StepReport) -> None:
        nonlocal saved_s
        times.append(step.elapsed_s)
        if time.monotonic() - saved_s > _SAVED_EVERY_S:
            trainer.save(_checkpoint(training))
            saved_s = time.monotonic()
        if step.step % 10 == 0 or len(times) == 1 or step.step == recipe.steps:
            say(step_line(step, recipe.steps, sum(times) / len(times)))

    some = {
        name: texts[: recipe.evaluated_texts]
        for name, texts in held_out.items()
        if not name.endswith(DRAWN)
    }
    columns = training.kind.columns(trainer.target.config)
    while trainer.steps_done < recipe.steps:
        goal = trainer.steps_done - trainer.steps_done % recipe.evaluate_every
        trainer.train(texts, min(recipe.steps, goal + recipe.evaluate_every), report)
        trainer.save(_checkpoint(training))
        for name, each in some.items():
            found = head_acceptance(trainer.head, each, columns, recipe.evaluated_drafts)
            say(f"  {name}: {acceptance_line(found)}")


def _evaluated(
    training: Training,
    head: TrainedHead,
    weights: TargetWeights,
    held_out: Mapping[str, Sequence[Text]],
    say: Say,
) -> dict[str, Acceptance]:
    """Of the head and of n-gram, over all texts that were held out."""
    columns, steps = training.kind.columns(weights.config), training.recipe.evaluated_drafts
    if held_out:
        say(f"evaluating {sum(map(len, held_out.values()))} texts that were held out")
    found = dict[str, Acceptance]()
    for name, texts in held_out.items():
        found[name] = head_acceptance(head, texts, columns, steps)
        found[NGRAM + name] = ngram_acceptance(texts, steps)
    return found


def _by_set(texts: Sequence[Text]) -> dict[str, list[Text]]:
    """By what the head saw of their kind, and by how they were drawn; sets that have texts."""
    found = dict[str, list[Text]]()
    for text in sorted(texts, key=lambda text: _SETS.index(_set_of(text.info))):
        found.setdefault(_set_of(text.info), []).append(text)
    return found


def _set_of(info: TextInfo) -> str:
    outside = OUT_FAMILY if info.family in OUT_OF_FAMILY else IN_FAMILY
    name = OWN_PROMPTS if info.family == OWN else outside
    return name + DRAWN if info.temperature else name


def _checkpoint(training: Training) -> Path:
    return training.folder / "checkpoint.pt"
