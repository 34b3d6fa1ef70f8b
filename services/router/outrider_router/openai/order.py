"""A request that has been read, as an order for the workers and as the frame of its answer."""

import itertools
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from outrider_router.generation import Order
from outrider_router.openai.dialect import CallIds, Encoded, Writer
from outrider_router.openai.errors import FieldNames
from outrider_router.openai.form import Form, form_of, text_rules
from outrider_router.openai.frame import Frame
from outrider_router.openai.logprobs import ChoiceLogprobs
from outrider_router.openai.params import Wishes, asked_tier, echoes
from outrider_router.openai.schema import ChatBody, GenerationBody
from outrider_router.routing.registry import ServedModel
from outrider_router.state import fingerprint
from outrider_router.text.assemble import TextRules
from outrider_router.text.spelling import Spelling
from outrider_router.types import ReportLevel, Submission

_sequence = itertools.count(1)


@dataclass(frozen=True)
class Asked:
    """A request, checked and tokenised; `bad_words` and `prediction` are token ids."""

    body: GenerationBody
    model: ServedModel
    wishes: Wishes
    prompts: Sequence[Encoded]
    bad_words: tuple[tuple[int, ...], ...]
    prediction: tuple[int, ...]
    request_id: str

    @property
    def per_choice(self) -> list[Encoded]:
        """Each choice's prompt, in the order of the choices."""
        return [prompt for prompt in self.prompts for _ in range(self.wishes.choices)]

    @property
    def rules(self) -> TextRules:
        """How the answers are read."""
        thinking_open = self._thinking_open and not self.form.at_once
        return text_rules(self.body, self.wishes, self.model.text, thinking_open)

    @cached_property
    def form(self) -> Form:
        """What the answers are held to.

        Raises:
            ApiError: 400, naming the field.
        """
        return form_of(self.body, self.wishes, self.model.text, self._thinking_open)

    @property
    def _thinking_open(self) -> bool:
        """Only a conversation, which is one prompt, opens thinking."""
        return self.prompts[0].thinking_open

    def names(self, prompt_param: str) -> FieldNames:
        """What the client called the fields that workers name otherwise."""
        structure = self.wishes.structure
        grammar = structure.param if structure else "tools"
        return FieldNames(prompt_param, grammar, self.form.lines)


def order_of(asked: Asked, limit_s: float) -> Order:
    """One submission per choice; the seed is always set, so that a retry repeats the text."""
    submissions = [
        submission for prompt in asked.prompts for submission in _submissions(asked, prompt)
    ]
    return Order(asked.model, tuple(submissions), asked.rules, limit_s)


def _submissions(asked: Asked, prompt: Encoded) -> list[Submission]:
    """The choices of one prompt: they differ by their index, equal prompts only by their seed."""
    wishes = asked.wishes
    seed = secrets.randbits(64) if wishes.seed is None else wishes.seed
    # Clients may repeat a request id; the worker must not see one twice.
    unique_id = f"{asked.request_id}.{next(_sequence)}"
    sampling = wishes.sampling(asked.model.context_tokens - len(prompt.ids), asked.bad_words)
    return [
        Submission(
            request_id=unique_id,
            choice_index=choice,
            prompt_ids=tuple(prompt.ids),
            seed=seed,
            sampling=sampling,
            speculation=wishes.speculation,
            prediction_ids=asked.prediction,
            grammar=asked.form.grammar,
            top_logprobs=wishes.top_logprobs,
            tenant_salt=wishes.tenant_salt,
            priority=wishes.priority,
        )
        for choice in range(wishes.choices)
    ]


def frame_of(asked: Asked, writer: Writer, now_s: float, report: ReportLevel) -> Frame:
    """What stands around the answers."""
    body, wishes, model = asked.body, asked.wishes, asked.model
    style = model.text.tool_format
    return Frame(
        writer=writer,
        answer_id=writer.id_prefix + secrets.token_hex(12),
        created_s=int(now_s),
        model=model.name,
        fingerprint=fingerprint(model),
        service_tier="default" if asked_tier(body) else None,
        with_usage=body.wants_usage_chunk,
        prompt_ids=[p.ids for p in asked.per_choice] if body.return_token_ids else (),
        echo=[p.text or "" for p in asked.per_choice] if echoes(body) else (),
        logprobs=_logprobs(asked) if wishes.top_logprobs is not None else (),
        spelling=_spelling(asked) if report is ReportLevel.TOKENS else None,
        call_ids=CallIds(style.id_characters if style else None),
        named_call=wishes.tools is not None and wishes.tools.mode == "named",
        with_reasoning=not isinstance(body, ChatBody) or body.include_reasoning is not False,
    )


def _logprobs(asked: Asked) -> list[ChoiceLogprobs]:
    table, shown = asked.model.text.tokenizer.table, asked.rules.shown_special
    spelling = _spelling(asked)
    return [ChoiceLogprobs(spelling, table, shown) for _ in asked.per_choice]


def _spelling(asked: Asked) -> Spelling:
    as_ids = bool(asked.body.return_tokens_as_token_ids)
    return Spelling(asked.model.text.tokenizer, asked.rules.shown_special, as_ids)
