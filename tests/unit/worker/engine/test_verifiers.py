"""Verifiers in a running engine: what a client gets from each, with a drafter that has logits."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import pytest
import torch

from outrider_worker.engine.types import RequestSpec, SpeculationLimits
from outrider_worker.model.loader import load_model
from outrider_worker.speculate.device import DeviceDrafter, DraftsSomeTokens, StatefulDrafter
from outrider_worker.speculate.draft_laws import DraftLaws
from outrider_worker.speculate.ngram import NgramDrafter
from outrider_worker.speculate.rejection import RejectionVerifier
from outrider_worker.speculate.relaxed import RelaxedRule, RelaxedVerifier
from outrider_worker.speculate.verify import Verifier
from tests.support.block_layouts import DSPARK
from tests.support.device_bigram import DeviceBigram
from tests.support.engines import Answer, Bench, prompts, request, static_plan, undisturbed
from tests.support.neural_drafters import block_drafter, eagle3_head
from tests.support.tiny_models import VOCAB_SIZE, shared_tiny_llama

K, SEATS = 3, 32
SAMPLED: dict[str, Any] = {
    "temperature": 1.5,
    "top_p": 0.97,
    "frequency_penalty": 0.3,
    "seed": 4,
}


@cache
def bigram() -> DeviceDrafter:
    """Knows the target's embedding and head, and nothing of what is between."""
    model = load_model(shared_tiny_llama()).model
    return DeviceBigram(model.logits(model.embed(torch.arange(VOCAB_SIZE))), K)


def rejection() -> RejectionVerifier:
    return RejectionVerifier(DraftLaws(SEATS, K, VOCAB_SIZE))


def run(
    verifier: Verifier | None,
    *specs: RequestSpec,
    draft_tokens: int = K,
    verify: Callable[[int, int], int] = lambda n, d: n * d,
) -> tuple[Bench, list[Answer]]:
    plan = static_plan("bigram", draft_tokens, verify=verify)
    bench = Bench(plan=plan, device_drafter=bigram(), verifier=verifier)
    return bench, bench.run(*specs)


def accepted_tokens(bench: Bench) -> int:
    return sum(record.accepted_tokens for record in bench.records)


def forced(text: list[int], token_id: int) -> RequestSpec:
    """A request that has to say `token_id` behind a text, whatever it costs."""
    return request(text, 1, logit_bias=((token_id, 1e4),), top_logprobs=3)


def test_logprobs_under_rejection_are_the_targets_own() -> None:
    """Bit for bit those of plain decoding along the same text: raw ones, of the emitted token."""
    spec = request(prompts(1)[0], 8, top_logprobs=3, **SAMPLED)
    bench, (answer,) = run(rejection(), spec)
    assert accepted_tokens(bench) > 0
    text = [*spec.prompt_ids, *answer.token_ids]
    start = len(spec.prompt_ids)
    plain = Bench().run(*(forced(text[:at], text[at]) for at in range(start, len(text))))
    assert [each.token_ids[0] for each in plain] == answer.token_ids
    assert [each.logprobs[0] for each in plain] == answer.logprobs


def test_greedy_requests_get_the_same_text_from_every_verifier() -> None:
    specs = [request(prompt, 12) for prompt in prompts(2)]
    for verifier in (None, rejection(), RelaxedVerifier(RelaxedRule(1, 2))):
        _, answers = run(verifier, *specs)
        assert [each.token_ids for each in answers] == [undisturbed(spec) for spec in specs]


def test_sampler_match_gives_the_seeds_text_and_rejection_another() -> None:
    """One whatever is drafted and verified, the other one of the same law."""
    specs = [request(prompt, 14, **SAMPLED) for prompt in prompts(3)]
    plain = [undisturbed(spec) for spec in specs]
    for draft_tokens, verify in ((1, lambda n, d: n * d), (K, lambda n, d: n * d // 2)):
        _, answers = run(None, *specs, draft_tokens=draft_tokens, verify=verify)
        assert [each.token_ids for each in answers] == plain
    bench, answers = run(rejection(), *specs)
    assert [each.token_ids for each in answers] != plain
    assert [len(each.token_ids) for each in answers] == [14] * 3
    assert accepted_tokens(bench) > 0


def test_requests_that_switch_speculation_off_get_the_seeds_text_under_rejection() -> None:
    off = request(
        prompts(1)[0], 10, speculation=SpeculationLimits(enabled=False), temperature=1.0, seed=2
    )
    _, (answer, _) = run(rejection(), off, request(prompts(2)[1], 10, **SAMPLED))
    assert answer.token_ids == undisturbed(off)


@pytest.mark.parametrize(
    "make", [eagle3_head, partial(block_drafter, DSPARK["speculators"])], ids=["eagle3", "dspark"]
)
def test_laws_over_a_part_of_the_vocabulary_are_enough(
    make: Callable[[int], StatefulDrafter],
) -> None:
    drafter = make(K)
    assert isinstance(drafter, DraftsSomeTokens)
    laws = DraftLaws(SEATS, K, VOCAB_SIZE, draft_ids=drafter.draft_ids)
    assert laws.bytes < DraftLaws(SEATS, K, VOCAB_SIZE).bytes / 2
    plan = static_plan(drafter.traits.name, K)
    bench = Bench(plan=plan, device_drafter=drafter, verifier=RejectionVerifier(laws))
    specs = [request(prompt, 20, temperature=2.0, seed=n) for n, prompt in enumerate(prompts(4))]
    assert [len(each.token_ids) for each in bench.run(*specs)] == [20] * 4
    verified = sum(record.verified_tokens for record in bench.records)
    assert 0 < accepted_tokens(bench) < verified


def test_the_hosts_drafts_are_judged_as_given_ones() -> None:
    """Their seats' laws are of nobody: a sampled text still comes out, and drafts still hold."""
    looping = ((9, 8, 7) * 6)[:16]
    bias = ((9, 12.0), (8, 12.0), (7, 12.0))
    bench = Bench(NgramDrafter(K), static_plan("ngram", K), verifier=rejection())
    (answer,) = bench.run(request(looping, 20, temperature=1.0, seed=1, logit_bias=bias))
    assert len(answer.token_ids) == 20
    verified = sum(record.verified_tokens for record in bench.records)
    assert 0 < accepted_tokens(bench) < verified


def test_relaxed_tokens_are_counted_apart_and_only_while_thinking() -> None:
    open_id, close_id = 250, 251
    verifier = RelaxedVerifier(RelaxedRule(open_id, close_id, top=VOCAB_SIZE, delta=1.0))
    prompt = prompts(1)[0]
    never = ((open_id, -1e4), (close_id, -1e4))
    counts = []
    for start, relaxed in (((*prompt, open_id), True), (prompt, True), ((*prompt, open_id), False)):
        spec = request(start, 10, relaxed=relaxed, logit_bias=never)
        bench, (answer,) = run(verifier, spec)
        counts.append(sum(record.relaxed_tokens for record in bench.records))
        assert answer.relaxed_tokens == counts[-1]
        assert (answer.token_ids == undisturbed(spec)) == (counts[-1] == 0)
    assert counts[0] > 0
    assert counts[1:] == [0, 0]
