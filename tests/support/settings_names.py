"""The variables that the services' settings classes know, to check what deployments set."""

from pydantic import AliasChoices

from outrider_planner.settings import PlannerSettings
from outrider_router.settings import RouterSettings
from outrider_runtime.settings import SECRETS_DIR, ServiceSettings
from outrider_worker.settings import WorkerSettings

SETTINGS: dict[str, type[ServiceSettings]] = {
    "router": RouterSettings,
    "planner": PlannerSettings,
    "worker": WorkerSettings,
}
# Read by libraries, not by settings classes.
OF_LIBRARIES = {"HF_TOKEN", "HF_HUB_OFFLINE"}


def variables(service: str) -> set[str]:
    """Every variable that a service reads."""
    kind = SETTINGS[service]
    prefix = str(kind.model_config["env_prefix"])
    known = {SECRETS_DIR}
    for field, info in kind.model_fields.items():
        alias = info.validation_alias
        known.add(
            str(alias.choices[-1])
            if isinstance(alias, AliasChoices)
            else f"{prefix}{field}".upper()
        )
    return known
