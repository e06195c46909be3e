"""HttpAccess: the settings of a server's users and certificates, without reading their files."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpAccess:
    """Who may use an HTTP server, and how the connection is encrypted."""

    users_file: str = ""
    """The file of users (`streamlog users add NAME --file FILE`); empty: no passwords."""
    certificate: str = ""
    """PEM file with the server's private key and certificates; empty: no TLS."""
    key_password: str = field(default="", repr=False)
    """The password of the private key, if it is encrypted."""
    ca: str = ""
    """PEM file with the authorities of workers' certificates; empty: those of this machine."""
    needs_client_certificate: bool = False
    """Whether clients have to show a certificate of an authority in `ca` (ssl.client.auth)."""
    operators: str = ""
    """The users that may change something on the console, separated by commas; the others read."""
    is_insecure: bool = False
    """Whether others may reach the server without a password or without TLS."""

    @property
    def has_login(self) -> bool:
        """Whether clients have to prove who they are."""
        return bool(self.users_file) or self.needs_client_certificate

    @property
    def scheme(self) -> str:
        """The scheme of the server's URLs."""
        return "https" if self.certificate else "http"


OPEN_ACCESS: Final = HttpAccess()
"""Neither users nor TLS: for addresses of this machine alone."""
