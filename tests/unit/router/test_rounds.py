"""Cutting rounds to the tokens of an answer that are kept."""

from hypothesis import given
from hypothesis import strategies as st

from outrider_router.types import Round, Update, cut_rounds

ROUNDS = st.lists(
    st.integers(0, 6).flatmap(
        lambda tokens: st.builds(
            Round, st.just(tokens), st.just(6), st.integers(0, tokens), st.integers(0, tokens)
        )
    ),
    max_size=6,
)


def marks(rounds: tuple[Round, ...]) -> list[bool]:
    """For each token whether it was a draft."""
    return [at < one.accepted_tokens for one in rounds for at in range(one.tokens)]


@given(ROUNDS, st.integers(0, 40))
def test_the_kept_tokens_keep_their_marks(rounds: list[Round], tokens: int) -> None:
    kept = cut_rounds(rounds, tokens)
    assert marks(kept) == marks(tuple(rounds))[:tokens]
    assert all(one.tokens for one in kept)
    assert all(one.relaxed_tokens <= one.accepted_tokens for one in kept if one not in rounds)


@given(ROUNDS, ROUNDS)
def test_unread_news_keep_their_rounds_in_order(first: list[Round], second: list[Round]) -> None:
    merged = Update(rounds=tuple(first)).followed_by(Update(rounds=tuple(second)))
    assert marks(merged.rounds) == marks(tuple(first)) + marks(tuple(second))
