"""What the services of a stack take from the environment and their supervisor must know too: TLS.

Flags set the rest, so that nothing else about them depends on where `outrider up` was started.
"""

from dataclasses import dataclass
from pathlib import Path

from outrider_cli.errors import CommandError
from outrider_runtime.settings import ConfigurationError, ServiceSettings, settings_config
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
        settings = _Settings()
        return InheritedTls(tls_files(settings), settings.http_tls_cert_file is not None)
    except ConfigurationError as error:
        raise CommandError(str(error)) from error
