"""Stop strings: the same answer as a naive search over the whole text, whatever the cuts (A01)."""

from hypothesis import given, settings
from hypothesis import strategies as st

from outrider_router.text.assemble import EndKind, TextAssembler, TextEnd, TextRules
from outrider_router.text.detokenize import TokenTable
from outrider_router.text.parts import content_of
from outrider_router.text.stops import StopMatcher
from outrider_router.text.tokenizer import ModelTokenizer
from tests.support import tiny_tokenizers as tiny

TOKENIZER = ModelTokenizer(tiny.byte_level_json())
TABLE: TokenTable = TOKENIZER.table

letters = st.text(alphabet="ab<|", max_size=24)
stop_lists = st.lists(st.text(alphabet="ab<|", min_size=1, max_size=4), min_size=1, max_size=4)


def naive(text: str, stops: list[str]) -> tuple[str, str | None]:
    """First stop to be complete; of those that end together, the longest."""
    for end in range(len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            stop = max(ending, key=len)
            return text[: end - len(stop)], stop
    return text, None


def ids_of(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False)


@settings(max_examples=300)
@given(text=letters, stops=stop_lists, data=st.data())
def test_matcher_equals_naive_search_for_every_cut(
    text: str, stops: list[str], data: st.DataObject
) -> None:
    matcher = StopMatcher(stops)
    shown, rest, found = "", text, None
    while rest and found is None:
        size = data.draw(st.integers(1, len(rest)))
        scan = matcher.push(rest[:size])
        shown, rest, found = shown + scan.text, rest[size:], scan.stop
        assert naive(text, stops)[0].startswith(shown), "text past a stop must never be shown"
    if found is None:
        shown += matcher.flush()
    assert (shown, found) == naive(text, stops)


def test_first_complete_stop_wins_however_the_text_is_cut() -> None:
    for pieces in (["xabc"], ["xab", "c"], list("xabc")):
        matcher = StopMatcher(["xabc", "ab", "b"])
        shown = ""
        for piece in pieces:
            scan = matcher.push(piece)
            shown += scan.text
            if scan.stop:
                break
        assert (shown, scan.stop) == ("x", "ab"), "of two that end together, the longer"


def test_only_what_may_begin_a_stop_is_held_back() -> None:
    matcher = StopMatcher(["</s>", "END"])
    assert [matcher.push(piece).text for piece in ("a<", "b", "c</", "s", "E")] == [
        "a",
        "<b",
        "c",
        "",
        "</s",
    ]
    assert matcher.flush() == "E"


STOPPED, CUT = TextEnd(EndKind.STOP_STRING, "#"), TextEnd(EndKind.LENGTH)


def run(rounds: list[list[int]], stops: list[str], cap: int) -> tuple[str, int, TextEnd | None]:
    assembler = TextAssembler(TABLE, TextRules(tuple(stops)), cap)
    text = ""
    for ids in rounds:
        piece = assembler.push(ids)
        text += piece.text
        if piece.end:
            return text, assembler.kept_tokens, piece.end
    return text + content_of(assembler.finish()), assembler.kept_tokens, None


def test_a01_stop_before_the_cap_beats_the_cap_and_past_it_does_not() -> None:
    a, b, c, d, e, stop = (ids_of(letter)[0] for letter in "abcde#")
    assert run([[a, b, stop, c, d, e]], ["#"], 5) == ("ab", 3, STOPPED)
    assert run([[a, b, c, d, stop, e]], ["#"], 5) == ("abcd", 5, STOPPED)
    assert run([[a, b, c, d, e, stop]], ["#"], 5) == ("abcde", 5, CUT)


@given(text=letters, stops=stop_lists, cap=st.integers(1, 30), data=st.data())
def test_answers_do_not_depend_on_the_rounds(
    text: str, stops: list[str], cap: int, data: st.DataObject
) -> None:
    ids = ids_of(text)
    rounds, rest = [], ids
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        rounds.append(rest[:size])
        rest = rest[size:]
    alone = run([[token_id] for token_id in ids], stops, cap)
    assert run(rounds, stops, cap) == alone
    shown = "".join(TABLE.bytes_of(i).decode() for i in ids[:cap])
    assert alone[0] == naive(shown, stops)[0]


@given(text=st.text(max_size=20), cap=st.integers(1, 60))
def test_limit_alone_cuts_and_counts(text: str, cap: int) -> None:
    ids = ids_of(text)
    shown, kept, end = run([ids], [], cap)
    assert kept == min(cap, len(ids))
    assert (end == CUT) is (len(ids) >= cap)
    assert text.startswith(shown)


def test_text_held_back_comes_out_at_the_limit() -> None:
    assert run([ids_of("ab<")], ["<|"], len(ids_of("ab<"))) == ("ab<", 3, CUT)
