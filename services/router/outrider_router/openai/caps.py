"""How much one request may hold, where whoever runs the router decides.

Bounds that protect the router whatever is decided stand beside the fields, in `schema`.
"""

from dataclasses import dataclass

from pydantic import ValidationInfo

MAX_LOGIT_BIASES = 1024
MAX_GRAMMAR_BYTES = 64 * 1024
MAX_PREDICTION_TOKENS = 128 * 1024
"""These three are the contract's limits: workers take no more."""


@dataclass(frozen=True)
class Caps:
    """Most of each that a request may hold; settings of the same names set them.

    Attributes:
        messages: of a conversation.
        tools: offered to the model.
        stops: stop strings.
        stop_characters: of one stop string.
        logit_biases: tokens with a bias.
        grammar_bytes: of a schema, pattern or grammar.
        prediction_tokens: of a predicted output.
        json_values: of a body, so that it holds the tokens of the longest prompt.
    """

    messages: int = 4096
    tools: int = 128
    stops: int = 4
    stop_characters: int = 1024
    logit_biases: int = MAX_LOGIT_BIASES
    grammar_bytes: int = MAX_GRAMMAR_BYTES
    prediction_tokens: int = MAX_PREDICTION_TOKENS
    json_values: int = 1 << 20


DEFAULT_CAPS = Caps()


def caps_of(info: ValidationInfo) -> Caps:
    """The caps under which a body is being validated."""
    return info.context if isinstance(info.context, Caps) else DEFAULT_CAPS
