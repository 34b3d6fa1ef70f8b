"""TLS between services: who proves what, from files that are read once at the start.

A server shows its certificate; with an authority it also asks for one of its clients. A client
checks the server against the authority, and shows its own certificate where it has one. One set of
files serves both roles of a process, as certificates of a service mesh do.
"""

from dataclasses import dataclass
from pathlib import Path

import grpc

from outrider_runtime.settings import ConfigurationError, ServiceSettings


@dataclass(frozen=True)
class TlsFiles:
    """Where the PEM files are.

    Attributes:
        ca_file: authority that signed the other sides' certificates.
        cert_file: this process's certificate, with those in between.
        key_file: its private key.
        server_name: the name that servers' certificates carry, where it is not the one they are
            called by: addresses found by DNS have none.
    """

    ca_file: Path
    cert_file: Path | None = None
    key_file: Path | None = None
    server_name: str = ""

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """For a client.

        Raises:
            ConfigurationError: a file cannot be read.
        """
        return grpc.ssl_channel_credentials(
            root_certificates=_read(self.ca_file),
            private_key=_read(self.key_file) if self.key_file else None,
            certificate_chain=_read(self.cert_file) if self.cert_file else None,
        )

    def server_credentials(self) -> grpc.ServerCredentials:
        """For a server; clients must show a certificate of the authority.

        Raises:
            ConfigurationError: a file is missing or cannot be read.
        """
        if self.cert_file is None or self.key_file is None:
            raise ConfigurationError(
                "a gRPC server with TLS needs OUTRIDER_TLS_CERT_FILE and OUTRIDER_TLS_KEY_FILE"
            )
        pair = (_read(self.key_file), _read(self.cert_file))
        return grpc.ssl_server_credentials([pair], _read(self.ca_file), require_client_auth=True)

    def channel_options(self) -> list[tuple[str, str]]:
        """What a channel needs beside its credentials."""
        name = self.server_name
        return [("grpc.ssl_target_name_override", name)] if name else []


def tls_files(settings: ServiceSettings) -> TlsFiles | None:
    """The files that a service's settings name; None where TLS is not asked for.

    Raises:
        ConfigurationError: a certificate without an authority, half of a pair, or a file that
            cannot be read: told at the start, not at the first call.
    """
    ca, cert, key = settings.tls_ca_file, settings.tls_cert_file, settings.tls_key_file
    if (cert is None) is not (key is None):
        raise ConfigurationError("OUTRIDER_TLS_CERT_FILE and OUTRIDER_TLS_KEY_FILE go together")
    if ca is None:
        if cert is not None:
            raise ConfigurationError("OUTRIDER_TLS_CERT_FILE needs OUTRIDER_TLS_CA_FILE")
        return None
    for path in filter(None, (ca, cert, key)):
        _read(path)
    return TlsFiles(ca, cert, key, settings.tls_server_name)


def _read(path: Path) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from error
    if b"-----BEGIN" not in content:
        raise ConfigurationError(f"{path} is no PEM file")
    return content
