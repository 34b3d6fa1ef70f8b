"""Which requests come from a page that a browser shows, and not from this server's own clients.

Such a page can reach a server on its own machine: by a name that resolves to it (DNS rebinding), or
by sending a request that browsers send anywhere. So the host must be an address or a known name,
and an origin must be this server's own. Browsers always name a host: a request without one, as some
probes send it (HTTP/1.0), comes from no page.

What a refusal looks like is the service's matter.
"""

import ipaddress
from collections.abc import Collection, Sequence
from urllib.parse import urlsplit


class ForeignRequest(Exception):
    """A request that may come from elsewhere; `status` is 400, 421 or 403."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def check_host(hosts: Sequence[str], origins: Sequence[str], names: Collection[str] = ()) -> None:
    """Check a request's `host` and `origin` headers.

    Args:
        hosts: values of `host`.
        origins: values of `origin`.
        names: what the server goes by beside addresses and localhost.

    Raises:
        ForeignRequest: either is not this server's, or it is not clear which host is meant.
    """
    if len(hosts) > 1:
        raise ForeignRequest(400, "the request names more than one host")
    for host in hosts:
        name = _host_name(f"//{host}")
        if name is None or not (_is_address(name) or name in {"localhost", *names}):
            raise ForeignRequest(421, f"this server does not go by the name {host!r}")
    for origin in origins:
        if _location(origin) not in [host.lower() for host in hosts]:
            raise ForeignRequest(403, f"requests from the origin {origin!r} are not answered")


def _host_name(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def _location(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
