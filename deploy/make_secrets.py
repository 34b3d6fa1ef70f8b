"""Makes the secrets of a stack, once.

    make_secrets.py FOLDER          one file per secret, in a folder per trust zone
    make_secrets.py --kubernetes    the same as Secret objects on stdout, for `kubectl apply -f -`

What is there already stays. `OUTRIDER_TOKEN`, `OUTRIDER_ROUTER_API_KEYS`,
`OUTRIDER_PLANNER_REDIS_URL` (of a store of your own) and `GRAFANA_ADMIN_PASSWORD` are taken from
the environment where they are set. Knows who may see what: each zone is mounted only where it is
needed. Files are called as `OUTRIDER_SECRETS_DIR` wants them.
"""

import base64
import os
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path

Zones = Mapping[str, Mapping[str, str]]

# PING alone is open, for probes. The planner may touch its own keys and load its functions.
_ACL = """\
user default on nopass -@all +ping
user outrider on >{password} ~outrider:* resetchannels -@all +@connection +@read +@write \
+@scripting +time -@dangerous
"""


def make(environment: Mapping[str, str]) -> Zones:
    """Secrets by zone and file name."""
    store_password = secrets.token_hex(24)
    bundled = f"redis://outrider:{store_password}@valkey:6379/0"
    return {
        "services": {"outrider_token": _given(environment, "OUTRIDER_TOKEN")},
        "clients": {"outrider_router_api_keys": _given(environment, "OUTRIDER_ROUTER_API_KEYS")},
        "store": {
            "outrider_planner_redis_url": environment.get("OUTRIDER_PLANNER_REDIS_URL") or bundled,
            "users.acl": _ACL.format(password=store_password),
        },
        "grafana": {"admin_password": _given(environment, "GRAFANA_ADMIN_PASSWORD")},
    }


def _given(environment: Mapping[str, str], name: str) -> str:
    return environment.get(name) or secrets.token_urlsafe(32)


def write(zones: Zones, folder: Path) -> None:
    """Whole zones that are missing; a zone's files belong together.

    The files are readable by any user: each service runs as its own, and a volume is mounted only
    where its zone is needed.
    """
    for zone, files in zones.items():
        place = folder / zone
        place.mkdir(parents=True, exist_ok=True)
        if any(place.iterdir()):
            continue
        for name, text in files.items():
            (place / name).write_text(text)
            (place / name).chmod(0o444)


def manifests(zones: Zones) -> str:
    """One Secret per zone; Grafana is not part of the Kubernetes deployment."""
    return "---\n".join(
        f"apiVersion: v1\nkind: Secret\nmetadata:\n  name: outrider-{zone}\ntype: Opaque\ndata:\n"
        + "".join(f"  {name}: {_base64(text)}\n" for name, text in files.items())
        for zone, files in zones.items()
        if zone != "grafana"
    )


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def main(arguments: list[str]) -> int:
    """Exit status 2 where the arguments make no sense."""
    match arguments:
        case ["--kubernetes"]:
            sys.stdout.write(manifests(make(os.environ)))
        case [folder] if not folder.startswith("-"):
            write(make(os.environ), Path(folder))
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
