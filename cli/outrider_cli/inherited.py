"""What commands take from the environment as services do: the token, and how services use TLS.

Flags set the rest, so that nothing else about a stack depends on where `outrider up` was started.
"""

from dataclasses import dataclass
from pathlib import Path

from outrider_cli.errors import CommandError
from outrider_runtime.settings import ConfigurationError, ServiceSettings, settings_config
from outrider_runtime.settings_faults import read_settings
from outrider_runtime.tls import TlsFiles, tls_files


class _Settings(ServiceSettings):
    model_config = settings_config("OUTRIDER_ROUTER_")

    http_tls_cert_file: Path | None = None


@dataclass(frozen=True)
class InheritedTls:
    """How the services are to be asked.

    Attributes:
        grpc: certificates for gRPC; None without TLS.
        https: the router answers HTTPS alone.
    """

    grpc: TlsFiles | None = None
    https: bool = False


def inherited_tls() -> InheritedTls:
    """TLS as the services will find it.

    Raises:
        CommandError: the settings contradict each other.
    """
    try:
        settings = read_settings(_Settings)
        return InheritedTls(tls_files(settings), settings.http_tls_cert_file is not None)
    except ConfigurationError as error:
        raise CommandError(str(error)) from error


def inherited_token() -> str | None:
    """The shared token: `OUTRIDER_TOKEN`, or its file in a folder of `OUTRIDER_SECRETS_DIR`.

    Never from a command line, which others on the machine can read.

    Raises:
        CommandError: one of those folders is not there, or a setting of all services cannot work.
    """
    try:
        return read_settings(_Settings).token_text
    except ConfigurationError as error:
        raise CommandError(str(error)) from error
