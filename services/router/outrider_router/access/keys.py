"""API keys: what each may do, and finding the one that a client presents.

Only hashes are kept. Keys are long and random, so a plain SHA-256 hides them well enough. Every
hash is compared each time and in constant time: how long it takes tells nothing of the keys.
"""

import hashlib
import hmac
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from outrider_runtime.settings import ConfigurationError

HASH_PREFIX = "sha256:"
SAFE_KEY_CHARACTERS = 16
"""Shorter keys can be guessed, or found from their hashes; they work, with a warning."""
Priority = Literal["low", "normal", "high"]


class KeyPolicy(BaseModel):
    """One key of the file, by its hash; what is not set is not limited.

    Attributes:
        name: for logs, never secret.
        sha256: of the key, in hexadecimal.
        requests_per_minute: generation requests, and those that tokenize or detokenize.
        tokens_per_minute: prompt and answer tokens together.
        concurrent: choices in flight or waiting.
        priority: its share where requests wait: low 1, normal 4, high 16.
        max_draft_tokens: no request of the key is drafted for beyond that; 0 is without drafts.
        class_label: what the planner's rules call its requests.
        cache_salt: prompts are shared in prefix caches with keys of the same salt only.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1, max_length=64)
    sha256: str = Field(pattern=r"^[0-9a-fA-F]{64}$")
    requests_per_minute: int | None = Field(None, ge=1)
    tokens_per_minute: int | None = Field(None, ge=1)
    concurrent: int | None = Field(None, ge=1)
    priority: Priority = "normal"
    max_draft_tokens: int | None = Field(None, ge=0)
    class_label: str = Field("", max_length=64)
    cache_salt: str = Field("", max_length=256)


class _KeyFile(BaseModel):
    model_config = ConfigDict(extra="forbid")

    keys: list[KeyPolicy]


ANONYMOUS = KeyPolicy(name="anonymous", sha256="0" * 64)
"""Whoever comes where no key is needed."""


def policy_of_entry(entry: str, number: int) -> KeyPolicy:
    """An entry of the environment, `sha256:HEX` or the key itself, without limits.

    Raises:
        ConfigurationError: the hash is none.
    """
    digest = hashlib.sha256(entry.encode()).hexdigest()
    if entry.startswith(HASH_PREFIX):
        digest = entry.removeprefix(HASH_PREFIX)
    try:
        return KeyPolicy(name=f"key-{number}", sha256=digest)
    except ValidationError:
        raise ConfigurationError(f"API key {number}: {HASH_PREFIX} wants 64 hex digits") from None


def policies_of_file(path: Path) -> list[KeyPolicy]:
    """The keys of a file `{"keys": [{"name": …, "sha256": …}, …]}`.

    Raises:
        ConfigurationError: it cannot be read or says something else; without its contents.
    """
    try:
        return _KeyFile.model_validate(json.loads(path.read_text(encoding="utf-8"))).keys
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, f['loc']))}: {f['msg']}" for f in error.errors())
        raise ConfigurationError(f"API keys in {path}: {faults}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"API keys in {path}: {error}") from None


class KeyRing:
    """All keys.

    Raises:
        ConfigurationError: two entries have the same name or the same key.
    """

    def __init__(self, policies: Iterable[KeyPolicy]) -> None:
        self.policies: Sequence[KeyPolicy] = tuple(policies)
        self._digests = [bytes.fromhex(policy.sha256) for policy in self.policies]
        for what in (self._digests, [policy.name for policy in self.policies]):
            if len(set(what)) < len(what):
                raise ConfigurationError("two API keys are the same, or have the same name")

    def find(self, presented: str) -> KeyPolicy | None:
        """The key that a client shows, or None."""
        digest = hashlib.sha256(presented.encode()).digest()
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        return next((p for p, same in zip(self.policies, matches, strict=True) if same), None)
