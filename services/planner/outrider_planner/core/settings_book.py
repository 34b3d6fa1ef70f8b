"""The settings in force for every deployment, with the policies they name ready to decide.

Knows which of two versions wins, and that a deployment without settings of its own has those of
the configuration. Does not know plans, workers, or how settings are stored.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from outrider_planner.core.policies import Policy, UnknownPolicyError
from outrider_planner.core.policies.base import Bounds
from outrider_planner.core.settings import (
    DeploymentSettings,
    SettingsConflictError,
    SettingsError,
)

Parse = Callable[[str], Policy]


@dataclass(frozen=True, slots=True, eq=False)
class Settled:
    """Settings and what their names stand for; ``shadows`` in the order of the settings."""

    settings: DeploymentSettings
    policy: Policy
    shadows: tuple[Policy, ...] = ()

    @property
    def bounds(self) -> Bounds:
        """What a policy is told of them."""
        chosen = self.settings
        return Bounds(chosen.latency_bound_s, chosen.max_draft_tokens, chosen.class_rules)


class SettingsBook:
    """By deployment; ``default`` for those that nobody set."""

    def __init__(self, default: Settled, parse: Parse) -> None:
        self.default = default
        self._parse = parse
        self._settled: dict[str, Settled] = {}

    def of(self, deployment: str) -> Settled:
        """What holds for a deployment now."""
        return self._settled.get(deployment, self.default)

    def settle(self, settings: DeploymentSettings) -> Settled:
        """Settings with their policies.

        Raises:
            SettingsError: a policy or shadow is not known.
        """
        try:
            policy = self._parse(settings.policy)
            return Settled(settings, policy, tuple(map(self._parse, settings.shadows)))
        except UnknownPolicyError as error:
            raise SettingsError(str(error)) from error

    def put(self, deployment: str, settings: DeploymentSettings) -> DeploymentSettings:
        """Puts the next version in force; ``settings.version`` must be that of today.

        Raises:
            SettingsConflictError: it is not.
            SettingsError: a policy or shadow is not known.
        """
        present = self.of(deployment).settings.version
        if settings.version != present:
            raise SettingsConflictError(
                f"settings of {deployment!r} are at version {present}, not {settings.version}: "
                "read them again"
            )
        found = self.settle(settings.changed())
        self._settled[deployment] = found
        return found.settings

    def adopt(self, deployment: str, stored: DeploymentSettings) -> bool:
        """Takes what the store holds, if it is newer; True where something changed.

        At one version the store is right: another planner was first there.

        Raises:
            SettingsError: a policy or shadow is not known; the present settings stay.
        """
        present = self.of(deployment).settings
        if stored.version < present.version or stored == present:
            return False
        self._settled[deployment] = self.settle(stored)
        return True

    def keep_only(self, deployments: Collection[str]) -> None:
        """Forgets the settings of all others; the store still has them."""
        self._settled = {name: s for name, s in self._settled.items() if name in deployments}
