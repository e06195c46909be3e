"""Registry settings: where a schema registry is, and how a client proves who it is.

The names are those of Confluent's clients, so that a file for them can be used as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import unquote, urlsplit

import msgspec

from streamlog.errors import ConfigError

URL = "schema.registry.url"
AUTH = "basic.auth.user.info"
CA_FILE = "ssl.ca.location"
CERTIFICATE_FILE = "ssl.certificate.location"
KEY_FILE = "ssl.key.location"
KEY_PASSWORD = "ssl.key.password"  # noqa: S105 - the name of a setting
NAMES = (URL, AUTH, CA_FILE, CERTIFICATE_FILE, KEY_FILE, KEY_PASSWORD)
DEFAULT_PORT = 8081


class RegistryUrl(msgspec.Struct, frozen=True):
    """The address of one server of a registry."""

    host: str
    port: int
    path: str
    is_tls: bool

    def __str__(self) -> str:
        """Return the URL, without a password."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http{'s' if self.is_tls else ''}://{host}:{self.port}{self.path}"


@dataclass(frozen=True, slots=True)
class RegistrySettings:
    """The settings of a client of a registry."""

    urls: tuple[RegistryUrl, ...]
    """Servers of one registry; any of them may answer."""
    auth: str = field(default="", repr=False)
    """`USER:PASSWORD` for basic authentication; empty: none."""
    ca_file: str = ""
    """A PEM file with the certificates that servers may be signed by; empty: the system's."""
    certificate_file: str = ""
    """A PEM file with the certificate that the client shows; empty: none."""
    key_file: str = ""
    """The key of that certificate; empty: it is in the same file."""
    key_password: str = field(default="", repr=False)
    """The password of an encrypted key; empty: the key is not encrypted."""

    @classmethod
    def of(cls, given: str | Mapping[str, str]) -> Self:
        """Return the settings.

        Args:
            given: URLs, separated by commas, or settings by Confluent's names, such as
                `{"schema.registry.url": "https://...", "basic.auth.user.info": "user:password"}`.

        Raises:
            ConfigError: a setting is unknown, or a URL is malformed.
        """
        settings = {URL: given} if isinstance(given, str) else dict(given)
        unknown = next((name for name in settings if name not in NAMES), None)
        if unknown is not None:
            raise ConfigError(
                f"the schema registry has no setting {unknown!r}: use {', '.join(NAMES)}"
            )
        urls = [text.strip() for text in settings.get(URL, "").split(",") if text.strip()]
        if not urls:
            raise ConfigError(f"{URL} is missing: http://HOST:{DEFAULT_PORT}, or https://")
        found = [_parse(text) for text in urls]
        auth = next((auth for _, auth in found if auth), "")
        return cls(
            urls=tuple(url for url, _ in found),
            auth=settings.get(AUTH, "") or auth,
            ca_file=settings.get(CA_FILE, ""),
            certificate_file=settings.get(CERTIFICATE_FILE, ""),
            key_file=settings.get(KEY_FILE, ""),
            key_password=settings.get(KEY_PASSWORD, ""),
        )

    def __str__(self) -> str:
        """Return the URLs, for messages."""
        return ",".join(map(str, self.urls))


def _parse(text: str) -> tuple[RegistryUrl, str]:
    """Return an address, and the `USER:PASSWORD` in it."""
    parts = urlsplit(text)
    try:
        port = parts.port
    except ValueError:
        port = -1
    if parts.scheme not in {"http", "https"} or not parts.hostname or port == -1:
        # Without the text itself: it may contain a password.
        raise ConfigError(
            f"a URL of the schema registry is malformed: write http://HOST:{DEFAULT_PORT} or "
            f"https://HOST:{DEFAULT_PORT}"
        )
    is_tls = parts.scheme == "https"
    # A registry behind a proxy has the scheme's port, as in any URL.
    port = port or (443 if is_tls else 80)
    auth = "" if parts.username is None else f"{unquote(parts.username)}:{parts.password or ''}"
    return RegistryUrl(parts.hostname, port, parts.path.rstrip("/"), is_tls), auth
