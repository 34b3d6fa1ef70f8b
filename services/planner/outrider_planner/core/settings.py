"""What an operator sets for one deployment while it runs, and its form in the store.

Knows the fields, their bounds, and one canonical text for each value. Does not know which policies
are installed: their names are checked by whoever parses them. Bounds are those of ``Plan`` and of
the worker's guard, so that no setting can make a plan that a worker would have to clamp.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from outrider_planner.core.types import MAX_DRAFT_TOKENS, ClassRule, GuardSettings, Objective

MOST_TEXT_BYTES = 16_384
MOST_POLICY_CHARACTERS = 256
MOST_CLASS_RULES = 16
MOST_SHADOWS = 4
MOST_CLASS_CHARACTERS = 64
_WEIGHTS = (0.0, 100.0)
_LATENCY_BOUNDS_S = (1e-4, 60.0)
# What workers take; they replace anything else by their own defaults.
_THRESHOLDS_TOKENS = (1.0, 64.0)
_LOSS_RATIOS = (0.005, 0.2)


class SettingsError(ValueError):
    """Settings that cannot be used; the text names every field that is wrong."""


class SettingsConflictError(SettingsError):
    """The settings were changed by somebody else meanwhile; the text names both versions."""


@dataclass(frozen=True, slots=True)
class DeploymentSettings:
    """How one deployment is planned. ``version`` grows by one with every change; 0: by default.

    ``policy`` and ``shadows``: names as in the configuration, the shadows evaluated beside it and
    never applied. ``latency_bound_s``: the longest time between two tokens of a request, with the
    objective ``latency`` only. ``max_draft_tokens``: a cap on every draft; None: the workers' own.
    """

    policy: str = "two_stage"
    objective: Objective = Objective.THROUGHPUT
    latency_bound_s: float | None = None
    max_draft_tokens: int | None = None
    class_rules: tuple[ClassRule, ...] = ()
    shadows: tuple[str, ...] = ()
    guard: GuardSettings = field(default_factory=GuardSettings)
    version: int = 0

    def __post_init__(self) -> None:
        """Raises ``SettingsError`` for what is out of bounds."""
        faults = list(_faults(self))
        if faults:
            raise SettingsError("; ".join(faults))

    def to_json(self) -> str:
        """The canonical text: equal settings have equal texts."""
        values = {**asdict(self), "objective": self.objective.value}
        return json.dumps(values, sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> DeploymentSettings:
        """The settings of a text; fields left out have their defaults.

        Raises:
            SettingsError: too long, not JSON, an unknown field, a wrong type, or out of bounds.
        """
        if len(text.encode()) > MOST_TEXT_BYTES:
            raise SettingsError(f"settings are longer than {MOST_TEXT_BYTES} bytes")
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise SettingsError("settings are no JSON") from error
        return cls.from_values(values)

    @classmethod
    def from_values(cls, values: Any) -> DeploymentSettings:
        """The settings of an object as JSON holds it. Raises ``SettingsError`` as above."""
        given = _object(values, cls, "settings")
        if "objective" in given:
            given["objective"] = _objective(given["objective"])
        if "class_rules" in given:
            given["class_rules"] = tuple(
                ClassRule(**_object(rule, ClassRule, "class_rules", "request_class"))
                for rule in _list(given["class_rules"], "class_rules")
            )
        if "shadows" in given:
            given["shadows"] = tuple(_list(given["shadows"], "shadows"))
        if "guard" in given:
            given["guard"] = _guard(given["guard"])
        return cls(**given)

    def changed(self, **values: Any) -> DeploymentSettings:
        """The next version, with these fields changed. Raises ``SettingsError``."""
        return replace(self, **{**values, "version": self.version + 1})


def _object(values: Any, kind: type, what: str, *required: str) -> dict[str, Any]:
    """A copy of an object whose names are fields of ``kind``."""
    if not isinstance(values, Mapping):
        raise SettingsError(f"{what} must be an object")
    known = {item.name for item in fields(kind)}
    unknown = sorted(str(name) for name in values.keys() - known)
    if unknown:
        raise SettingsError(f"{what} has no field {', '.join(unknown)}")
    missing = [name for name in required if name not in values]
    if missing:
        raise SettingsError(f"{what} needs {', '.join(missing)}")
    return dict(values)


def _guard(values: Any) -> GuardSettings:
    given = _object(values, GuardSettings, "guard")
    if given.get("enabled", True) is not True:
        raise SettingsError("guard.enabled is reserved: only a worker can switch its guard off")
    return GuardSettings(**given)


def _list(values: Any, what: str) -> list[Any]:
    if not isinstance(values, list | tuple):
        raise SettingsError(f"{what} must be a list")
    return list(values)


def _objective(value: Any) -> Objective:
    known = [item.value for item in Objective]
    if isinstance(value, Objective):
        return value
    if value not in known:
        raise SettingsError(f"objective must be one of {', '.join(known)}")
    return Objective(value)


def _faults(settings: DeploymentSettings) -> Iterator[str]:
    if not _is_text(settings.policy, MOST_POLICY_CHARACTERS):
        yield f"policy must be a text of 1 to {MOST_POLICY_CHARACTERS} characters"
    shadows = {str(name) for name in settings.shadows}
    if len(settings.shadows) > MOST_SHADOWS or len(shadows) < len(settings.shadows):
        yield f"shadows must be at most {MOST_SHADOWS} policies, each named once"
    if not all(_is_text(name, MOST_POLICY_CHARACTERS) for name in settings.shadows):
        yield f"shadows must be texts of 1 to {MOST_POLICY_CHARACTERS} characters"
    yield from _latency_faults(settings)
    if not _is_draft_cap(settings.max_draft_tokens):
        yield f"max_draft_tokens must be 0…{MAX_DRAFT_TOKENS} or null"
    yield from _rule_faults(settings.class_rules)
    if not _is_within(settings.guard.minimum_threshold_tokens, _THRESHOLDS_TOKENS):
        yield "guard.minimum_threshold_tokens must be {:g}…{:g}".format(*_THRESHOLDS_TOKENS)
    if not _is_within(settings.guard.detectable_loss_ratio, _LOSS_RATIOS):
        yield "guard.detectable_loss_ratio must be {:g}…{:g}".format(*_LOSS_RATIOS)
    if not _is_whole(settings.version) or not 0 <= settings.version < 2**53:
        yield "version must be a whole number, at least 0"


def _latency_faults(settings: DeploymentSettings) -> Iterator[str]:
    bound = settings.latency_bound_s
    if bound is not None and not _is_within(bound, _LATENCY_BOUNDS_S):
        yield "latency_bound_s must be {:g}…{:g} seconds or null".format(*_LATENCY_BOUNDS_S)
    if settings.objective is Objective.LATENCY and bound is None:
        yield "the objective latency needs latency_bound_s"


def _rule_faults(rules: tuple[ClassRule, ...]) -> Iterator[str]:
    names = [rule.request_class for rule in rules]
    if len(names) > MOST_CLASS_RULES or len({str(name) for name in names}) < len(names):
        yield f"class_rules must be at most {MOST_CLASS_RULES}, each class named once"
    for rule in rules:
        if not _is_text(rule.request_class, MOST_CLASS_CHARACTERS):
            yield f"request_class must be a text of 1 to {MOST_CLASS_CHARACTERS} characters"
        if not _is_within(rule.weight, _WEIGHTS):
            yield "weight of {!r} must be {:g}…{:g}".format(rule.request_class, *_WEIGHTS)
        if not _is_draft_cap(rule.max_draft_tokens):
            yield (
                f"max_draft_tokens of {rule.request_class!r} must be 0…{MAX_DRAFT_TOKENS} or null"
            )


def _is_text(value: Any, most: int) -> bool:
    return isinstance(value, str) and 0 < len(value.strip()) <= len(value) <= most


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_within(value: Any, bounds: tuple[float, float]) -> bool:
    number = _is_whole(value) or isinstance(value, float)
    return number and bounds[0] <= value <= bounds[1]


def _is_draft_cap(value: Any) -> bool:
    return value is None or (_is_whole(value) and 0 <= value <= MAX_DRAFT_TOKENS)
