"""A prompt that ends within its last message, for the model to go on with it.

What a template puts behind a message may hold the message's own text, so that the place is marked
before the template is rendered: with a letter that nothing in the conversation has.
"""

from collections.abc import Iterable
from dataclasses import replace

from outrider_router.text.template import Conversation, TemplateError

_PRIVATE = range(0xE000, 0xF900)
_NOTHING = "the final message has no content that could be continued"


def with_end_marked(chat: Conversation, texts: Iterable[str]) -> tuple[Conversation, str]:
    """The conversation with a mark behind its last message's content, and the mark.

    Args:
        chat: the conversation.
        texts: every text that meets the mark.

    Raises:
        TemplateError: there is no content, or the texts use up the letters.
    """
    *earlier, last = chat.messages
    content = str(last.get("content") or "").rstrip()
    if not content:
        raise TemplateError(_NOTHING)
    mark = _unused_letter(list(texts))
    return replace(chat, messages=[*earlier, {**last, "content": content + mark}]), mark


def up_to_mark(text: str, mark: str) -> str:
    """The rendered prompt up to the mark.

    Raises:
        TemplateError: the template left the content out.
    """
    before, found, _ = text.rpartition(mark)
    if not found:
        raise TemplateError(_NOTHING)
    return before


def _unused_letter(texts: list[str]) -> str:
    strange = [text for text in texts if not text.isascii()]
    for letter in map(chr, _PRIVATE):
        if not any(letter in text for text in strange):
            return letter
    raise TemplateError("the messages hold too many different private-use characters")
