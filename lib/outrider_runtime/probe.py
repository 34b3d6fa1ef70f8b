"""`python -m outrider_runtime.probe URL`: is a service of this machine in order? For containers.

`http://127.0.0.1:8000/ready` is asked as it is, and by HTTPS where the server speaks that;
`grpc://127.0.0.1:7080` asks gRPC's health service, by TLS where `OUTRIDER_TLS_CA_FILE` is set, with
the service's own certificate. The answer is the exit status: 0, or 1 with the reason on stderr.

Asked every few seconds beside the service it asks, so nothing is imported that is not needed.
"""

import http.client
import os
import socket
import ssl
import sys
import urllib.request
from typing import Any
from urllib.parse import urlsplit

LIMIT_S = 3.0


def trouble(url: str, limit_s: float = LIMIT_S) -> str | None:
    """Why the service is not in order; None if it is.

    Raises:
        ValueError: the URL is of another kind.
    """
    parts = urlsplit(url)
    if parts.scheme == "http":
        return _trouble_over_http(url, limit_s)
    if parts.scheme == "grpc" and parts.hostname and parts.port:
        return _trouble_over_grpc(parts.hostname, parts.port, limit_s)
    hint = "; http:// finds a server that speaks HTTPS, too" if parts.scheme == "https" else ""
    raise ValueError(f"{url!r} is neither http://HOST:PORT/PATH nor grpc://HOST:PORT{hint}")


def _trouble_over_http(url: str, limit_s: float) -> str | None:
    try:
        try:
            _open(url, limit_s)
        # A server that speaks TLS closes, or says what is no HTTP.
        except (ConnectionError, http.client.HTTPException):
            _open(url.replace("http:", "https:", 1), limit_s)
    except (OSError, http.client.HTTPException) as error:
        return f"{url}: {error}"
    return None


def _open(url: str, limit_s: float) -> None:
    # This machine's own service, asked by address, which its certificate need not name; and it is
    # told no secret.
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    asked = (urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    with urllib.request.build_opener(*asked).open(url, timeout=limit_s):
        pass


def _trouble_over_grpc(host: str, port: int, limit_s: float) -> str | None:
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    try:
        with _channel(host, port, limit_s) as channel:
            asked = health_pb2.HealthCheckRequest()
            answer = health_pb2_grpc.HealthStub(channel).Check(asked, timeout=limit_s)
    except grpc.RpcError as error:
        return f"{host}:{port}: {error.details()}"
    except OSError as error:
        return f"{host}:{port}: {error}"
    serving = answer.status == health_pb2.HealthCheckResponse.SERVING
    return None if serving else f"{host}:{port}: not serving"


def _channel(host: str, port: int, limit_s: float) -> Any:
    import grpc

    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    direct = ("grpc.enable_http_proxy", 0)
    files = _tls_files()
    if files is None:
        return grpc.insecure_channel(address, [direct])
    name = files.server_name or _name_shown(host, port, files, limit_s)
    options = [direct, ("grpc.ssl_target_name_override", name)]
    return grpc.secure_channel(address, files.channel_credentials(), options)


def _tls_files() -> Any:
    # Most have none, and to read settings takes longer than to ask.
    folders = filter(None, os.environ.get("OUTRIDER_SECRETS_DIR", "").split(":"))
    mounted = any(os.path.exists(f"{folder}/outrider_tls_ca_file") for folder in folders)
    if not (mounted or os.environ.get("OUTRIDER_TLS_CA_FILE")):
        return None
    from outrider_runtime.settings import ServiceSettings, settings_config
    from outrider_runtime.tls import tls_files

    class Common(ServiceSettings):
        """The settings of any service."""

        model_config = settings_config("OUTRIDER_PROBE_")

    return tls_files(Common())


def _name_shown(host: str, port: int, files: Any, limit_s: float) -> str:
    """A name in the server's certificate, whose authority is checked."""
    context = ssl.create_default_context(cafile=files.ca_file)
    context.check_hostname = False
    if files.cert_file is not None:
        context.load_cert_chain(files.cert_file, files.key_file)
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection((host, port), limit_s) as plain,
        context.wrap_socket(plain) as connection,
    ):
        shown: Any = (connection.getpeercert() or {}).get("subjectAltName", ())
    return next((name for kind, name in shown if kind == "DNS"), host)


def main() -> int:
    """Ask the one URL given."""
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        found = trouble(sys.argv[1])
    except ValueError as error:
        found = str(error)
    if found is not None:
        print(found, file=sys.stderr)
    return int(found is not None)


if __name__ == "__main__":
    sys.exit(main())
