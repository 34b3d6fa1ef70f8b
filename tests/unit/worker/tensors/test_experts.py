"""Routing and experts: the choices, the bits of a row in any company, and the ways that agree."""

import dataclasses

import pytest
import torch
from torch import Tensor

from outrider_worker.linear import make_linear
from outrider_worker.model.config import MoeConfig
from outrider_worker.model.experts import (
    ExpertByExpert,
    Experts,
    GroupedExperts,
    MaskedExperts,
    StackedWeights,
    stacked_experts,
)
from outrider_worker.model.layers import GatedFeedForward
from outrider_worker.model.moe import _read_experts, _stacked
from outrider_worker.model.routing import Router, Routing, sigmoid

EXPERTS, SIZE, INNER = 8, 32, 16
PLAIN = MoeConfig(experts=EXPERTS, experts_per_token=3, expert_ffn_size=INNER)
GROUPED = dataclasses.replace(PLAIN, groups=4, groups_kept=2, grouping="group_limited_greedy")
V3 = dataclasses.replace(
    GROUPED, grouping="noaux_tc", scoring="sigmoid", normalise=True, scale=2.5, bias_corrected=True
)


PARTS = list(enumerate(("gate", "up")))


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def router(config: MoeConfig) -> Router:
    bias = noise(EXPERTS, seed=2) if config.bias_corrected else None
    return Router(config, make_linear(noise(EXPERTS, SIZE, seed=1)), bias)


def fixed_router(config: MoeConfig, logits: list[float], bias: list[float] | None = None) -> Router:
    def product(x: Tensor) -> Tensor:
        return torch.tensor(logits).expand(len(x), -1)

    return Router(config, product, None if bias is None else torch.tensor(bias))


def chosen(router: Router) -> list[int]:
    experts: list[int] = router(torch.zeros(1, SIZE)).experts[0].tolist()
    return experts


@pytest.fixture(scope="module")
def stacked() -> StackedWeights:
    gate_up = noise(EXPERTS, 2 * INNER, SIZE, seed=3) / SIZE**0.5
    return StackedWeights(gate_up, noise(EXPERTS, SIZE, INNER, seed=4) / INNER**0.5)


@pytest.fixture(scope="module")
def by_expert(stacked: StackedWeights) -> Experts:
    pairs = zip(stacked.gate_up, stacked.down, strict=True)
    return ExpertByExpert(
        [GatedFeedForward(make_linear(gate_up), make_linear(down)) for gate_up, down in pairs]
    )


LOGITS = [0.0, 5.0, 4.0, 4.5, 4.6, 0.1, 0.2, 4.4]


def test_the_best_experts_of_all_are_chosen() -> None:
    assert chosen(fixed_router(PLAIN, LOGITS)) == [1, 3, 4]


def test_groups_with_the_best_expert_are_kept() -> None:
    """Groups of two: the best experts are 1, 4, 3; so groups 0 and 2 are kept, and 5 is third."""
    assert chosen(fixed_router(GROUPED, LOGITS)) == [1, 4, 5]


def test_groups_with_the_best_two_are_kept() -> None:
    """The pairs add up to 5.0, 8.5, 4.7 and 4.6 before the sigmoid."""
    by_two = dataclasses.replace(V3, experts_per_token=2, groups_kept=1)
    assert chosen(fixed_router(by_two, LOGITS, [0.0] * EXPERTS)) == [2, 3]


def test_the_bias_chooses_but_does_not_weigh() -> None:
    config = dataclasses.replace(V3, groups=1, groups_kept=1, normalise=False, scale=1.0)
    routing = fixed_router(config, LOGITS, [9.0, 0, 0, 0, 0, 9.0, 9.0, 0])(torch.zeros(1, SIZE))
    assert routing.experts[0].tolist() == [0, 5, 6]
    torch.testing.assert_close(routing.weights[0], torch.tensor([0.0, 0.1, 0.2]).sigmoid())


def test_normalised_weights_add_up_to_the_scale() -> None:
    weights = router(V3)(noise(5, SIZE)).weights
    torch.testing.assert_close(weights.sum(-1), torch.full((5,), 2.5))


@pytest.mark.parametrize("config", [PLAIN, GROUPED, V3], ids=["plain", "grouped", "v3"])
def test_a_row_is_routed_and_served_alike_in_any_company(
    config: MoeConfig, by_expert: Experts
) -> None:
    route, x = router(config), noise(70, SIZE)
    together = route(x)
    served = by_expert(x, together)
    for first, end in ((0, 1), (3, 5), (7, 20), (33, 70)):
        part = route(x[first:end].contiguous())
        assert torch.equal(part.experts, together.experts[first:end])
        assert torch.equal(part.weights, together.weights[first:end])
        assert torch.equal(by_expert(x[first:end].contiguous(), part), served[first:end])


@pytest.mark.parametrize("make", [GroupedExperts, MaskedExperts])
@pytest.mark.parametrize("rows", [1, 2, 37])
def test_the_ways_for_accelerators_agree_with_the_one_for_cpus(
    make: type[GroupedExperts] | type[MaskedExperts],
    rows: int,
    stacked: StackedWeights,
    by_expert: Experts,
) -> None:
    """With one row most experts have none."""
    x = noise(rows, SIZE, seed=rows)
    routing = router(V3)(x)
    expected = by_expert(x, routing)
    torch.testing.assert_close(make(stacked)(x, routing), expected, rtol=0, atol=1e-5)


def test_the_sum_is_what_the_definition_says(stacked: StackedWeights, by_expert: Experts) -> None:
    x = noise(1, SIZE)
    routing = Routing(torch.tensor([[2, 5]]), torch.tensor([[0.25, 2.0]]))
    expected = torch.zeros(SIZE)
    for expert, weight in ((2, 0.25), (5, 2.0)):
        gate, up = (stacked.gate_up[expert] @ x[0]).chunk(2)
        expected += weight * (stacked.down[expert] @ (gate.sigmoid() * gate * up))
    torch.testing.assert_close(by_expert(x, routing)[0], expected, rtol=0, atol=1e-5)


def test_the_detour_over_the_host_is_avoided(stacked: StackedWeights) -> None:
    """Only the bfloat16 kernel of recent GPUs does without it: this is none."""
    assert isinstance(stacked_experts(stacked), MaskedExperts)


def test_the_sigmoid_is_the_usual_one() -> None:
    x = torch.linspace(-90, 90, 181)
    torch.testing.assert_close(sigmoid(x), x.sigmoid())


def test_experts_of_an_accelerator_are_read_one_at_a_time_into_stacks() -> None:
    """The device without storage stands for one."""
    tensors = {
        f"mlp.experts.{expert}.{name}_proj.weight": shape
        for expert in range(EXPERTS)
        for name, shape in (("gate", (INNER, SIZE)), ("up", (INNER, SIZE)), ("down", (SIZE, INNER)))
    }

    def read(name: str, dtype: torch.dtype | None = None) -> Tensor:
        return torch.empty(tensors.pop(name), device="meta", dtype=torch.bfloat16)

    experts = _read_experts(PLAIN, read, "mlp.experts", torch.device("meta"))
    assert isinstance(experts, MaskedExperts)
    assert experts._weights.gate_up.shape == (EXPERTS, 2 * INNER, SIZE)
    assert experts._weights.down.shape == (EXPERTS, SIZE, INNER)
    assert tensors == {}


def test_stacks_hold_gate_and_up_of_each_expert_side_by_side() -> None:
    values = {f"{e}.{part}_proj.weight": float(10 * e + p) for e in (0, 1) for p, part in PARTS}

    def read(name: str, dtype: torch.dtype | None = None) -> Tensor:
        return torch.full((2, 3), values[name])

    stack = _stacked(read, [f"{e}.{part}_proj" for e in (0, 1) for _, part in PARTS])
    assert stack[:, 0, 0].tolist() == [0.0, 1.0, 10.0, 11.0]
