"""Score bins, and which cuts a verifier allows with which scores."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from outrider_worker.speculate.cuts import Cut, LossyCut
from outrider_worker.speculate.draft_laws import DraftLaws
from outrider_worker.speculate.drafter import DrafterCost, DrafterTraits
from outrider_worker.speculate.rejection import RejectionVerifier
from outrider_worker.speculate.scores import running_bins, score_bin
from outrider_worker.speculate.verify import SamplerMatch, check_cuts


@given(st.lists(st.floats(0, 1, width=32), min_size=1, max_size=8))
def test_bins_are_of_the_running_product_and_never_rise(confidence: list[float]) -> None:
    bins = running_bins(torch.tensor([confidence]))[0].tolist()
    survival = 1.0
    for place, each in enumerate(confidence):
        survival *= min(max(each, 0.01), 0.99)
        edge = abs(survival - 2 ** ((bins[place] - 16) / 2)) < 1e-9  # rounding decides there
        assert bins[place] == score_bin(survival) or edge
    assert bins == sorted(bins, reverse=True)


def test_one_hopeless_draft_is_no_proof_and_one_sure_draft_none_either() -> None:
    assert running_bins(torch.tensor([[0.0, 1.0], [1.0, 1.0]])).tolist() == [[2, 2], [15, 15]]
    assert running_bins(torch.zeros(2, 0)).shape == (2, 0)


def test_scores_that_look_at_their_own_token_are_refused_where_it_matters() -> None:
    looks, blind = (
        DrafterTraits("head", DrafterCost.AUTOREGRESSIVE, 4, score_cut=cut)
        for cut in (Cut.OWN_TOKEN, Cut.PAST)
    )
    host = DrafterTraits("ngram", DrafterCost.HOST, 4, score_cut=Cut.OWN_TOKEN)
    rejection = RejectionVerifier(DraftLaws(1, 1, 3))
    with pytest.raises(LossyCut, match=r"rejection.*'head'.*sampler match"):
        check_cuts(rejection, [host, looks])
    check_cuts(rejection, [host, blind])
    check_cuts(SamplerMatch(), [host, looks])
