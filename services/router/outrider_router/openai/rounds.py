"""How an answer's tokens came about, round by round: `speculation_rounds` of a choice.

Only requests that ask for the report at the level `tokens` get it. Every token that is counted is
in it, in order, also those whose text is not shown: hidden special tokens, markers, a stop string.
"""

from collections.abc import Sequence
from typing import Any

from outrider_router.text.spelling import Spelling
from outrider_router.types import Round


def rounds_json(
    token_ids: Sequence[int], rounds: Sequence[Round], spelling: Spelling
) -> list[dict[str, Any]]:
    """The rounds that brought these tokens; `drafted` drafts were judged in each.

    Tokens are spelled as logprobs spell them: joined, their bytes are the text.
    """
    told, at = [], 0
    for one in rounds:
        tokens = token_ids[at : at + one.tokens]
        at += one.tokens
        told.append(
            {
                "drafter": one.drafter or None,
                "drafted": one.verified_tokens,
                "accepted": one.accepted_tokens,
                "tokens": [_spelled(token_id, spelling) for token_id in tokens],
            }
        )
    return told


def _spelled(token_id: int, spelling: Spelling) -> dict[str, Any]:
    token = spelling.of(token_id)
    return {"token": token.text, "bytes": list(token.raw)}
