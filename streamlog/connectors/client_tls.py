"""Client TLS: the files of a connector that connects to a server, and its settings of a server."""

from __future__ import annotations

import ssl
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, urlsplit

import msgspec

from streamlog.allowed_paths import (
    OPTION,
    PathNotAllowed,
    check_path,
    check_paths_in,
    is_allowed,
)
from streamlog.errors import ConfigError

PORT_MAX = 65_535
_SOCKETS = {"host", "unix_socket"}
_OPEN_FILES = {"local_infile", "read_default_file", "service", "servicefile"}
"""Options of drivers by which a server, or a file, says which files are read."""


class ClientTls(msgspec.Struct, frozen=True, kw_only=True):
    """The files of a client's TLS, in PEM.

    Attributes:
        ca: the certificates that sign the server's; those of the system by default.
        certificate: the client's certificate, if the server asks for one.
        key: its private key.
    """

    ca: str | None = None
    certificate: str | None = None
    key: str | None = None

    def check(self) -> None:
        """Raise ConfigError if a certificate has no key, or a key no certificate."""
        if (self.certificate is None) is not (self.key is None):
            raise ConfigError("tls.certificate and tls.key go together: set both or neither")
        self.check_files()

    def check_files(self) -> None:
        """Raise PathNotAllowed if a file may not be used."""
        for name in ("ca", "certificate", "key"):
            if (path := getattr(self, name)) is not None:
                check_path(f"tls.{name}", path)

    def context(self) -> ssl.SSLContext:
        """Return the context of a client, which checks the server's certificate and name.

        Raises:
            ConfigError: a file can't be read, or is none of its kind.
        """
        self.check_files()
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.certificate is not None and self.key is not None:
                context.load_cert_chain(Path(self.certificate), Path(self.key))
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"the files of tls can't be used: {error}") from error
        return context


def split_server_url(url: str, schemes: dict[str, int]) -> tuple[SplitResult, int]:
    """Return the parts of a server's URL, and its port.

    Args:
        url: the URL.
        schemes: the port of each scheme that is allowed.

    Raises:
        ConfigError: it has another scheme, no host, no valid port, or a password, which would be
            shown wherever settings are.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"url has no valid host or port: {error}") from error
    # Before anything that shows the URL: an error goes to logs and to answers of REST.
    if parts.password is not None or parts.username is not None:
        raise ConfigError("url has a login, which would be shown: set user and password instead")
    if parts.scheme not in schemes or not parts.hostname:
        forms = " or ".join(f"{scheme}://HOST:PORT" for scheme in schemes)
        raise ConfigError(f"url={url!r} is not {forms}")
    if port == 0:
        raise ConfigError(f"url={url!r} has port 0: write 1 to {PORT_MAX}")
    return parts, port or schemes[parts.scheme]


def check_url_options(url: str) -> None:
    """Refuse a database's URL whose options let the driver read files that may not be used.

    Raises:
        PathNotAllowed: it does.
    """
    options = dict(parse_qsl(urlsplit(url).query, keep_blank_values=True))
    # A directory of sockets is no file that a driver reads.
    check_paths_in("url", {name: options[name] for name in options.keys() - _SOCKETS})
    opening = sorted(options.keys() & _OPEN_FILES)
    if opening and not is_allowed("/"):
        raise PathNotAllowed(
            f"url: {', '.join(opening)} lets the driver read any file; leave it out, or start"
            f" `streamlog connect` with {OPTION} /"
        )
