"""One API key at run time: what it has used of its limits, and what it does to requests.

Knows no HTTP; how limits are told to clients is said in the words of `x-ratelimit-` headers, which
are the only ones there are.
"""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from outrider_router.access.buckets import Bucket
from outrider_router.access.keys import KeyPolicy, Priority
from outrider_router.types import Speculation, Submission

WEIGHTS = {"low": 1.0, "normal": 4.0, "high": 16.0}
_RANKS = {"low": 1, "normal": 0, "high": -1}
# Requests' own priorities lie between the ranks of two classes.
_RANK_STEP = 1 << 24
_MOST_WISHED = _RANK_STEP // 2 - 1
_SALT_BYTES = 32


class Overloaded(Exception):
    """A limit is reached; the message says which, and after how long it may be tried again."""

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


@dataclass
class Usage:
    """What one request costs its key."""

    tenant: "Tenant"

    def charge_prompt(self, tokens: int, now_s: float) -> None:
        """Take the prompt's tokens.

        Raises:
            Overloaded: the key has used its tokens.
        """
        bucket = self.tenant.tokens
        if bucket is None:
            return
        wait_s = bucket.wait_s(tokens, now_s)
        if wait_s > 0:
            raise Overloaded("the key's tokens per minute are used up", wait_s)
        bucket.take(tokens, now_s)

    def charge_answer(self, tokens: int, now_s: float) -> None:
        """Take the answer's tokens, which are spent already."""
        if self.tenant.tokens is not None:
            self.tenant.tokens.take(tokens, now_s)


class Tenant:
    """A key and its use."""

    def __init__(self, policy: KeyPolicy) -> None:
        self.policy = policy
        self.requests = _bucket(policy.requests_per_minute)
        self.tokens = _bucket(policy.tokens_per_minute)
        self.choices = 0

    def obey(self, policy: KeyPolicy) -> None:
        """Go on under another policy; what was used of a limit that stays the same is used."""
        before, self.policy = self.policy, policy
        if policy.requests_per_minute != before.requests_per_minute:
            self.requests = _bucket(policy.requests_per_minute)
        if policy.tokens_per_minute != before.tokens_per_minute:
            self.tokens = _bucket(policy.tokens_per_minute)

    @property
    def name(self) -> str:
        """The key's name."""
        return self.policy.name

    @property
    def weight(self) -> float:
        """Its share where requests wait."""
        return WEIGHTS[self.policy.priority]

    @contextmanager
    def request(self, choices: int, now_s: float) -> Iterator[Usage]:
        """One request, as long as it lasts.

        Raises:
            Overloaded: a limit of the key is reached.
        """
        most = self.policy.concurrent
        if most is not None and self.choices + choices > most:
            raise Overloaded(f"{self.choices} of the key's {most} places are taken")
        if self.requests is not None:
            wait_s = self.requests.wait_s(1, now_s)
            if wait_s > 0:
                raise Overloaded("the key's requests per minute are used up", wait_s)
            self.requests.take(1, now_s)
        self.choices += choices
        try:
            yield Usage(self)
        finally:
            self.choices -= choices

    def stamp(self, submission: Submission) -> Submission:
        """The submission as this key may send it."""
        policy = self.policy
        return replace(
            submission,
            class_label=policy.class_label,
            priority=_priority(policy.priority, submission.priority),
            tenant_salt=_salt(policy.cache_salt, submission.tenant_salt),
            speculation=_capped(submission.speculation, policy.max_draft_tokens),
        )

    def rate_headers(self, now_s: float) -> Mapping[str, str]:
        """Limits, what is left of them, and when they are whole again; empty without limits."""
        found = {}
        for kind, bucket in (("requests", self.requests), ("tokens", self.tokens)):
            if bucket is not None:
                found[f"x-ratelimit-limit-{kind}"] = str(bucket.per_minute)
                found[f"x-ratelimit-remaining-{kind}"] = str(bucket.remaining(now_s))
                found[f"x-ratelimit-reset-{kind}"] = duration(bucket.reset_s(now_s))
        return found


def duration(seconds: float) -> str:
    """Seconds as clients read them: `120ms`, `12s`, `1m5s`."""
    milliseconds = round(seconds * 1000)
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, rest = divmod(-(-milliseconds // 1000), 60)
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"


def _bucket(per_minute: int | None) -> Bucket | None:
    return None if per_minute is None else Bucket(per_minute)


def _priority(of_key: Priority, wished: int) -> int:
    """Lower comes first; the key's class says more than any wish of a request."""
    return _RANKS[of_key] * _RANK_STEP + max(-_MOST_WISHED, min(wished, _MOST_WISHED))


def _salt(of_key: str, of_request: bytes) -> bytes:
    """The key's salt cannot be left by naming another one in the request."""
    if not of_key:
        return of_request
    both = hashlib.sha256(of_key.encode()).digest() + of_request
    return hashlib.sha256(both).digest()[:_SALT_BYTES]


def _capped(wishes: Speculation, most: int | None) -> Speculation:
    if most is None:
        return wishes
    asked = wishes.max_draft_tokens
    return replace(wishes, max_draft_tokens=most if asked is None else min(asked, most))
