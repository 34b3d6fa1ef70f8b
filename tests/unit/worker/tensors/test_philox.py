"""Philox-4x32-10 against the published vectors, and the uniforms made of it."""

import torch

from outrider_worker.philox import Purpose, philox, uniform, uniform_of_all

# Known-answer vectors of Random123 (kat_vectors): counter, key, result.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    (
        (0xFFFFFFFF,) * 4,
        (0xFFFFFFFF,) * 2,
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def column(*values: int) -> torch.Tensor:
    return torch.tensor(values)


def test_known_answers() -> None:
    for counter, key, expected in KNOWN:
        c0, c1, c2, c3 = (column(word) for word in counter)
        words = philox((c0, c1, c2, c3), (column(key[0]), column(key[1])))
        assert tuple(int(word) for word in words) == expected


def test_uniforms_are_the_words_of_their_counters() -> None:
    seed, choice, index = column(0x299F31D0_A4093822), column(3), column(77)
    words = philox(
        (column(5), column(77), column(3), column(0)), (column(0xA4093822), column(0x299F31D0))
    )
    u = uniform(torch.tensor([[20, 21, 22, 23]]), seed, choice, index)
    assert u[0].tolist() == [(int(word) + 0.5) * 2.0**-32 for word in words]


def test_all_tokens_at_once_equal_each_token_by_itself() -> None:
    seed, choice, index = column(-5, 1 << 62), column(0, 1), column(9, 2**31 + 1)
    whole = uniform_of_all(1003, seed, choice, index)
    ids = torch.randperm(1003).expand(2, -1)
    assert whole.shape == (2, 1003)
    assert torch.equal(uniform(ids, seed, choice, index), whole.gather(1, ids))


def test_uniforms_are_spread_evenly_and_never_reach_the_ends() -> None:
    u = uniform_of_all(200_000, column(11), column(0), column(0))
    counts = torch.histc(u.float(), bins=100, min=0, max=1)
    chi_square = float(((counts - 2000) ** 2 / 2000).sum())
    assert u.min() > 0
    assert u.max() < 1
    assert 50 < chi_square < 160  # 99 degrees of freedom, far beyond 4 sigma on either side


def test_purposes_are_streams_that_have_nothing_in_common() -> None:
    places = torch.arange(5000)
    where = (torch.full_like(places, 7), torch.zeros_like(places), places)
    streams = torch.stack(
        [uniform(torch.zeros(5000, 1).long(), *where, purpose)[:, 0] for purpose in Purpose]
    )
    correlated = torch.corrcoef(streams) - torch.eye(len(Purpose))
    assert float(correlated.abs().max()) < 4 / 5000**0.5
