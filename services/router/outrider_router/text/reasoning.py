"""What a model thinks before it answers: told from the answer by the markers of its template."""

from dataclasses import dataclass

from outrider_router.text.parts import Reasoning
from outrider_router.text.source import Reader, Source, more, possible_beginning, skip_blanks


@dataclass(frozen=True)
class ThinkingMarkers:
    """The texts around what a model thinks."""

    opener: str
    closer: str


_KNOWN = (ThinkingMarkers("<think>", "</think>"), ThinkingMarkers("[THINK]", "[/THINK]"))


def thinking_markers_of(template: str) -> ThinkingMarkers | None:
    """The markers that a chat template knows, if it knows any."""
    return next((markers for markers in _KNOWN if markers.closer in template), None)


def opens_thinking(prompt: str, markers: ThinkingMarkers | None) -> bool:
    """True if a rendered prompt ends within thinking, so that the answer begins there."""
    return markers is not None and prompt.rstrip().endswith(markers.opener)


def begins_thinking(source: Source, markers: ThinkingMarkers, opened: bool) -> Reader[bool]:
    """True if the message begins with thinking; models may repeat the template's opener."""
    yield from skip_blanks(source)
    while not source.starts(markers.opener):
        if not markers.opener.startswith(source.rest) or not (yield from more(source)):
            source.rewind()
            return opened
    source.at += len(markers.opener)
    return True


def read_thinking(source: Source, closer: str) -> Reader[None]:
    """Everything up to the closer, without the blanks around it."""
    yield from skip_blanks(source)
    source.settle()
    yield from _pass_thinking(source, closer)


def _pass_thinking(source: Source, closer: str) -> Reader[None]:
    """Everything up to the closer, which is skipped; blanks wait until something follows them."""
    while True:
        end = source.text.find(closer)
        closed = end >= 0
        if not closed:
            end = len(source.text) - possible_beginning(source.text, (closer,))
        if said := source.text[:end].rstrip():
            source.at = len(said)
            yield Reasoning(source.settle())
        source.at = end - len(said)
        source.set_aside()
        if closed:
            source.at = len(closer)
            source.settle()
            return
        if not (yield from more(source)):
            source.at = len(source.text)
            yield Reasoning(source.settle().rstrip())
            return
