"""Policies by name: ``name`` or ``name:argument``.

Knows the built-in ones; others are handed in by whoever found them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from outrider_planner.core.policies.base import Policy
from outrider_planner.core.policies.dspark import DsparkPolicy
from outrider_planner.core.policies.lightspec import LightspecPolicy
from outrider_planner.core.policies.static import OffPolicy, StaticPolicy
from outrider_planner.core.policies.table import TablePolicy
from outrider_planner.core.policies.two_stage import TwoStagePolicy
from outrider_planner.core.types import MAX_DRAFT_TOKENS

Factory = Callable[[str], Policy]


class UnknownPolicyError(ValueError):
    """A policy that is not known or whose argument makes no sense; the text lists those known."""


def parse(text: str, outside: Mapping[str, Factory] | None = None) -> Policy:
    """The policy that a configuration names, for example ``static:4``.

    A factory gets what follows the colon, or an empty text. Built-in names come first.

    Raises:
        UnknownPolicyError: unknown name, missing or impossible argument.
    """
    name, _, argument = text.strip().partition(":")
    factories = {**(outside or {}), **{key: factory for key, (_, factory) in _BUILT_IN.items()}}
    known = ", ".join(usages(outside or ()))
    if name == "oracle":
        factories[name] = _oracle
    if name not in factories:
        raise UnknownPolicyError(f"unknown policy {text!r}; known are {known}")
    try:
        return factories[name](argument)
    except ValueError as error:
        raise UnknownPolicyError(f"policy {text!r} {error}; known are {known}") from error


def usages(outside: Iterable[str] = ()) -> tuple[str, ...]:
    """How each policy is named in a configuration, for example ``static:K``; then outside names."""
    return (*(usage for usage, _ in _BUILT_IN.values()), *sorted(outside))


def _static(argument: str) -> Policy:
    if not argument.isdecimal() or not 0 <= int(argument) <= MAX_DRAFT_TOKENS:
        raise ValueError(f"needs a draft length of 0…{MAX_DRAFT_TOKENS}")
    return StaticPolicy(int(argument))


def _oracle(argument: str) -> Policy:
    raise ValueError("runs in simulations only: it is handed the true survivals")


def _plain(policy: Policy) -> Factory:
    def factory(argument: str) -> Policy:
        if argument:
            raise ValueError(f"takes no argument, got {argument!r}")
        return policy

    return factory


_BUILT_IN: Mapping[str, tuple[str, Factory]] = {
    "two_stage": ("two_stage", _plain(TwoStagePolicy())),
    "lightspec": ("lightspec", _plain(LightspecPolicy())),
    "dspark": ("dspark", _plain(DsparkPolicy())),
    "table": ("table:n=K,n=K,…", TablePolicy.parse),
    "static": ("static:K", _static),
    "off": ("off", _plain(OffPolicy())),
}
