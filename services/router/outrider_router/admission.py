"""How much may be in flight: refuses at once what is over the limits instead of queueing it.

Pure bookkeeping; what a refusal looks like to the client is decided elsewhere.
"""

from types import TracebackType


class Overloaded(Exception):
    """A limit is reached; the message says which."""


class Admission:
    """Limits on choices and prompt tokens in flight.

    Args:
        max_choices: choices in flight at most; a request with n choices takes n places.
        max_prompt_tokens: prompt tokens in flight at most.
    """

    def __init__(self, max_choices: int, max_prompt_tokens: int) -> None:
        self._max_choices = max_choices
        self._max_prompt_tokens = max_prompt_tokens
        self.choices = 0
        self.prompt_tokens = 0

    def admit(self, choices: int) -> "Place":
        """Take places for a request.

        Raises:
            Overloaded: not so many are free.
        """
        if self.choices + choices > self._max_choices:
            raise Overloaded(f"{self.choices} of {self._max_choices} places are taken")
        self.choices += choices
        return Place(self, choices)

    def _charge(self, tokens: int) -> None:
        # A prompt larger than the limit is let in when it is alone: it would never be otherwise.
        if self.prompt_tokens and self.prompt_tokens + tokens > self._max_prompt_tokens:
            raise Overloaded("too many prompt tokens are in flight")
        self.prompt_tokens += tokens


class Place:
    """What one request takes, given back exactly once, at the end of the `with` block."""

    def __init__(self, admission: Admission, choices: int) -> None:
        self._admission = admission
        self._choices = choices
        self._prompt_tokens = 0

    def charge_prompt(self, tokens: int) -> None:
        """Count the prompt once its length is known.

        Raises:
            Overloaded: too many prompt tokens are in flight.
        """
        self._admission._charge(tokens)
        self._prompt_tokens += tokens

    def __enter__(self) -> "Place":
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self._admission.choices -= self._choices
        self._admission.prompt_tokens -= self._prompt_tokens
        self._choices = self._prompt_tokens = 0
