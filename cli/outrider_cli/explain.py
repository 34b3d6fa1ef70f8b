"""`outrider explain`: asks a planner why a worker is planned as it is, and prints it for people.

Knows the planner's HTTP port and the shape of its answer. Needs no package of the services.
"""

import http.client
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from outrider_cli.errors import CommandError

DEFAULT_URL = "http://127.0.0.1:7071"
_ELSEWHERE = "give the address of its HTTP port with --url"
_NO_WORKERS = (
    "no worker is connected to this planner; where several run, each knows its own workers:"
    " ask the others with --url"
)
_LIMIT_S = 10.0
_MOST_ANSWER_BYTES = 16 << 20
_COLUMNS = ("", "d", "V", "rows", "accepted", "T ms", "E ms", "D ms", "c ms", "tokens/s", "vs off")


def explanation(
    url: str, token: str | None, deployment: str | None, requests: int | None, worker: str | None
) -> dict[str, Any]:
    """The planner's answer; without a deployment, that of the only one there is.

    Raises:
        CommandError: no planner there, or it refuses; the text is the planner's.
    """
    name = deployment or _only_deployment(url, token)
    asked = {"n": requests, "worker": worker}
    query = urlencode({key: value for key, value in asked.items() if value is not None})
    path = f"/v1/deployments/{quote(name, safe='/@+')}/explain"
    return fetch_json(url, f"{path}?{query}" if query else path, token)


def fetch_json(url: str, path: str, token: str | None) -> dict[str, Any]:
    """The JSON object of a GET. Raises ``CommandError``."""
    parts = urlsplit(url if "//" in url else f"http://{url}")
    kinds = {"http": http.client.HTTPConnection, "https": http.client.HTTPSConnection}
    if parts.scheme not in kinds or not parts.hostname:
        raise CommandError(f"{url!r} is no address of a planner: try --url {DEFAULT_URL}")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        with closing(
            kinds[parts.scheme](parts.hostname, parts.port, timeout=_LIMIT_S)
        ) as connection:
            connection.request("GET", parts.path.rstrip("/") + path, headers=headers)
            response = connection.getresponse()
            status, body = response.status, response.read(_MOST_ANSWER_BYTES)
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise CommandError(f"no planner answers at {url} ({error}); {_ELSEWHERE}") from error
    return _object(url, status, body)


def render(found: Mapping[str, Any]) -> str:
    """The answer as lines for a terminal."""
    return "\n".join(_lines(found))


def _lines(found: Mapping[str, Any]) -> Iterator[str]:
    asked, step = found["requests"], found["ladder_requests"]
    served = "" if asked == step else f", served by the plan for n={step}"
    yield f"{found['deployment']}, worker {found['worker']} ({found['state']}), n={asked}{served}"
    yield (
        f"policy {found['policy']}, objective {found['objective']}, settings version "
        f"{found['settings_version']}, plan {found['plan_version']}, "
        f"changed {found['plan_age_s']:.1f} s ago"
    )
    yield f"\n{found['reason']}"
    for drafter in found["drafters"]:
        yield from _drafter(drafter)
    yield from _evidence(found)


def _drafter(drafter: Mapping[str, Any]) -> Iterator[str]:
    cells = [("chosen", drafter["chosen"]), *(("rival", cell) for cell in drafter["rivals"])]
    shown = {cell["draft_tokens"] for _, cell in cells if cell}
    if drafter["off"] and drafter["off"]["draft_tokens"] not in shown:
        cells.append(("off", drafter["off"]))
    rows = [_row(name, cell) for name, cell in cells if cell]
    yield f"\n{drafter['drafter']}"
    if rows:
        yield from _table([_COLUMNS, *rows])
    else:
        yield "  no costs were measured, so nothing has a price"
    if drafter["note"]:
        yield f"  {drafter['note']}"
    survival = " ".join(f"{value:.2f}" for value in drafter["survival"])
    yield f"  survival by position  {survival or 'unknown'}"
    yield f"  from {drafter['verified']:.0f} verified drafts of this worker (decayed count)"


def _row(name: str, cell: Mapping[str, Any]) -> tuple[str, ...]:
    times = (cell[f"{part}_s"] * 1e3 for part in ("target", "feed", "draft", "host"))
    return (
        name,
        *(str(cell[key]) for key in ("draft_tokens", "verify_tokens", "rows")),
        f"{cell['accepted_tokens']:.2f}",
        *(f"{value:.3f}" for value in times),
        f"{cell['rate_tokens_per_s']:.1f}",
        f"{cell['rate_vs_off_ratio']:.3f}",
    )


def _evidence(found: Mapping[str, Any]) -> Iterator[str]:
    sources = found["sources"]
    yield (
        f"\nverified drafts: {sources['own_verified']:.0f} of this worker, "
        f"{sources['deployment_verified']:.0f} of the deployment, "
        f"{sources['fleet_verified']:.0f} of the fleet"
    )
    yield f"cost table: {sources['cost']} (identity {sources['table_digest']})"
    if forecast := found["forecast"]:
        yield (
            f"latest rounds: accepted {forecast['realised_accepted_tokens']:.2f} of "
            f"{forecast['predicted_accepted_tokens']:.2f} predicted, "
            f"{forecast['measured_round_s'] * 1e3:.2f} ms of "
            f"{forecast['predicted_round_s'] * 1e3:.2f} ms predicted"
        )
    if guard := found["guard"]:
        yield (
            f"guard: {'tripped' if guard['tripped'] else 'calm'}, ledger "
            f"{guard['ledger_tokens']:.1f} of {guard['threshold_tokens']:.1f} tokens, "
            f"{guard['trips']} trips, {guard['readmissions']} re-admissions"
        )
    for shadow in found["shadows"]:
        cell = shadow["cell"]
        yield f"shadow {shadow['policy']}: " + (
            f"d={cell['draft_tokens']}, {cell['rows']} rows, {cell['rate_tokens_per_s']:.1f} "
            f"tokens/s, {cell['rate_vs_off_ratio']:.3f} of off"
            if cell
            else shadow["error"] or "no drafter"
        )


def _table(rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    listed = list(rows)
    widths = [max(len(row[column]) for row in listed) for column in range(len(listed[0]))]
    for row in listed:
        head = row[0].ljust(widths[0])
        rest = (cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
        yield "  " + "  ".join([head, *rest])


def _only_deployment(url: str, token: str | None) -> str:
    found = fetch_json(url, "/v1/deployments", token)
    names = [str(item["deployment"]) for item in found["deployments"]]
    if len(names) != 1:
        known = f"name one of {', '.join(names)}" if names else _NO_WORKERS
        raise CommandError(f"{len(names)} deployments at {url}: {known}")
    return names[0]


def _object(url: str, status: int, body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise CommandError(f"what answers at {url} is no planner (status {status}); {_ELSEWHERE}")
    if status != 200:
        message = found.get("error", {}).get("message", f"status {status}")
        hint = "; set OUTRIDER_TOKEN, or OUTRIDER_SECRETS_DIR" if status == 401 else ""
        raise CommandError(f"the planner refuses: {message}{hint}")
    return found
