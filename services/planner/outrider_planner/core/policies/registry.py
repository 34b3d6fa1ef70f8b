"""Policies by name: ``name`` or ``name:argument``."""

from __future__ import annotations

from collections.abc import Callable

from outrider_planner.core.policies.base import Policy
from outrider_planner.core.policies.static import OffPolicy, StaticPolicy
from outrider_planner.core.policies.two_stage import TwoStagePolicy
from outrider_planner.core.types import MAX_DRAFT_TOKENS

Factory = Callable[[str], Policy]


class UnknownPolicyError(ValueError):
    """A policy that is not known or whose argument makes no sense; the text lists those known."""


def register(name: str, usage: str, factory: Factory) -> None:
    """Adds a policy; the factory gets what follows the colon, or an empty text.

    Raises:
        ValueError: the name is taken.
    """
    if name in _REGISTRY:
        raise ValueError(f"policy {name!r} is already registered")
    _REGISTRY[name] = (usage, factory)


def parse(text: str) -> Policy:
    """The policy that a configuration names, for example ``static:4``.

    Raises:
        UnknownPolicyError: unknown name, missing or impossible argument.
    """
    name, _, argument = text.strip().partition(":")
    known = ", ".join(usage for usage, _ in _REGISTRY.values())
    if name not in _REGISTRY:
        raise UnknownPolicyError(f"unknown policy {text!r}; known are {known}")
    _, factory = _REGISTRY[name]
    try:
        return factory(argument)
    except ValueError as error:
        raise UnknownPolicyError(f"policy {text!r} {error}; known are {known}") from error


def _static(argument: str) -> Policy:
    if not argument.isdecimal() or not 0 <= int(argument) <= MAX_DRAFT_TOKENS:
        raise ValueError(f"needs a draft length of 0…{MAX_DRAFT_TOKENS}")
    return StaticPolicy(int(argument))


def _plain(policy: Policy) -> Factory:
    def factory(argument: str) -> Policy:
        if argument:
            raise ValueError(f"takes no argument, got {argument!r}")
        return policy

    return factory


_REGISTRY: dict[str, tuple[str, Factory]] = {
    "two_stage": ("two_stage", _plain(TwoStagePolicy())),
    "static": ("static:K", _static),
    "off": ("off", _plain(OffPolicy())),
}
