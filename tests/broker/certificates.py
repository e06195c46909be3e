"""A certificate authority, and certificates of a broker and of clients, for tests."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import trustme

CLIENT_NAME, BROKER_NAME = "shop", "broker"


@dataclass(frozen=True)
class Certificates:
    """Paths of PEM files."""

    authority: str
    broker: str
    """Key and certificate, for 127.0.0.1 and localhost."""
    client: str
    stranger: str
    """Key and certificate of a client, from another authority."""
    stranger_authority: str


@cache
def certificates() -> Certificates:
    """Create the certificates once per process: making keys takes time."""
    directory = Path(mkdtemp(prefix="streamlog-certificates-"))
    authority, other = trustme.CA(), trustme.CA()

    def written(name: str, cert: trustme.LeafCert) -> str:
        path = directory / f"{name}.pem"
        cert.private_key_and_cert_chain_pem.write_to_path(str(path))
        return str(path)

    def root(name: str, one: trustme.CA) -> str:
        path = directory / f"{name}.pem"
        one.cert_pem.write_to_path(str(path))
        return str(path)

    return Certificates(
        authority=root("authority", authority),
        stranger_authority=root("other", other),
        broker=written(
            "broker", authority.issue_cert("127.0.0.1", "localhost", common_name=BROKER_NAME)
        ),
        client=written("client", authority.issue_cert("shop@example.org", common_name=CLIENT_NAME)),
        stranger=written("stranger", other.issue_cert("x@example.org", common_name=CLIENT_NAME)),
    )
