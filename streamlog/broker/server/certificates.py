"""Certificates: what listeners with TLS show and ask for, read anew while the broker runs.

Certificates end, so their files are replaced while clients are there. When a client comes, once
a second at most, the files are looked at; if they have changed, they are read, and whoever comes
from then on gets the new ones. Files that can't be read, or do not belong together, change
nothing: what was read before goes on, with a line in the log. So files may be replaced one after
the other.
"""

from __future__ import annotations

import ssl
from contextlib import suppress
from typing import TYPE_CHECKING, Final, cast

from streamlog import repeated
from streamlog.broker.config.security import CLIENT_AUTH_NONE, CLIENT_AUTH_REQUIRED, SecurityConfig
from streamlog.broker.security.principal_rules import PrincipalRules
from streamlog.broker.security.principals import Subject, distinguished_name, of_user
from streamlog.broker.storage.disk.os_files import file_stamp
from streamlog.errors import ConfigError

if TYPE_CHECKING:
    from streamlog.clock import Clock
    from streamlog.transport.security import Security

LOOK_INTERVAL_MS: Final = 1_000
"""How often it is looked whether files have changed, at most."""

FLIGHTS_MAX: Final = 4
"""A handshake has fewer, there and back."""

_REASONS = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it showed no certificate (ssl.client.auth=required)",
    "NO_SHARED_CIPHER": "it has no cipher in common with ssl.cipher.suites and the certificate",
    "UNSUPPORTED_PROTOCOL": "it speaks only versions that are not in ssl.enabled.protocols",
    "TLSV1_ALERT_UNKNOWN_CA": "it does not trust the authority of the broker's certificate",
    "SSLV3_ALERT_BAD_CERTIFICATE": "it does not take the broker's certificate",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "it does not take the broker's certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the broker's certificate has expired",
}

_log = repeated.logger(__name__)


class Certificates:
    """The certificates of a broker, and the names that it gives to those of clients."""

    def __init__(self, config: SecurityConfig, clock: Clock) -> None:
        """Read the files.

        Raises:
            ConfigError: a file is missing or does not hold what it should.
        """
        self._config = config
        self._clock = clock
        self._rules = PrincipalRules.parse(config.principal_rules)
        self._stamps = self._stamped()
        self._context = server_context(config)
        self._looked_ms = clock.now_ms()

    def context(self) -> ssl.SSLContext:
        """For a client that comes now."""
        now_ms = self._clock.now_ms()
        if now_ms - self._looked_ms >= LOOK_INTERVAL_MS:
            self._looked_ms = now_ms
            self._look()
        return self._context

    def principal_of(self, subject: Subject) -> str | None:
        """Whom a client's certificate is about; None if no rule has a name for it."""
        name = self._rules.name_of(distinguished_name(subject))
        return None if name is None else of_user(name)

    def own_principal(self, security: Security, host: str) -> str | None:
        """Who this broker is to others of its cluster, which have certificates like its own.

        It shakes hands with itself, as one of them would that reaches it by `host` and comes to it
        with `security`. None: they show no certificates.

        Raises:
            ConfigError: they would not take it.
        """
        context = security.tls()
        if context is None:
            return None
        try:
            subject = _shaken(self._context, context, host)
        except ssl.SSLError as error:
            config = self._config
            raise ConfigError(
                f"other brokers, which reach this one by {host!r}, would not take its certificate:"
                f" {why(error)}; ssl.keystore.location={config.keystore} has to be for that name"
                " (or ssl.endpoint.identification.algorithm=none), and from an authority in"
                f" ssl.truststore.location={config.truststore or '(those of this machine)'}"
            ) from None
        if subject is None:
            return None
        principal = self.principal_of(subject)
        if principal is None:
            raise ConfigError(
                "ssl.principal.mapping.rules have no name for this broker's own certificate,"
                f" {distinguished_name(subject)}: other brokers would hang up on it"
            )
        return principal

    def _look(self) -> None:
        stamps = self._stamped()
        if stamps == self._stamps:
            return
        self._stamps = stamps
        try:
            self._context = server_context(self._config)
        except ConfigError as error:
            _log.error("certificates have changed and can't be used, the old ones go on: %s", error)
        else:
            _log.info("certificates were read anew: %s", self._config.keystore)

    def _stamped(self) -> list[tuple[int, ...] | None]:
        """Taken before files are read: what changes meanwhile is read again."""
        paths = (self._config.keystore, self._config.truststore)
        return [file_stamp(path) for path in paths if path]


def server_context(config: SecurityConfig) -> ssl.SSLContext:
    """What listeners with TLS show and ask for.

    Raises:
        ConfigError: a file is missing or does not hold what it should.
    """
    if not config.keystore:
        raise ConfigError(
            "a listener with TLS needs ssl.keystore.location, a PEM file with the broker's"
            " certificate and its private key"
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    versions = [ssl.TLSVersion[each.replace(".", "_")] for each in config.tls_versions.split(",")]
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    context.options |= ssl.OP_NO_RENEGOTIATION
    try:
        # Given as a function, so that OpenSSL never asks at a terminal.
        context.load_cert_chain(config.keystore, password=lambda: config.key_password)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"ssl.keystore.location={config.keystore}: {why(error)}; it has to be a PEM file with"
            " the broker's certificate and its private key (encrypted: ssl.key.password)"
        ) from error
    if config.client_auth != CLIENT_AUTH_NONE:
        is_required = config.client_auth == CLIENT_AUTH_REQUIRED
        context.verify_mode = ssl.CERT_REQUIRED if is_required else ssl.CERT_OPTIONAL
        try:
            context.load_verify_locations(config.truststore)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"ssl.truststore.location={config.truststore}: {why(error)}; it has to be a PEM"
                " file with certificates of authorities"
            ) from error
    if config.ciphers:
        try:
            context.set_ciphers(config.ciphers.replace(",", ":"))
        except ssl.SSLError as error:
            raise ConfigError(f"ssl.cipher.suites={config.ciphers!r}: {why(error)}") from error
    return context


def _shaken(server: ssl.SSLContext, client: ssl.SSLContext, host: str) -> Subject | None:
    """The subject that the server sees. Raises ssl.SSLError if one does not take the other."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=host),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(FLIGHTS_MAX):
        for end in ends:
            with suppress(ssl.SSLWantReadError):
                end.do_handshake()
    shown = ends[1].getpeercert() or {}
    # As `ssl` gives it; its types know only of texts.
    return cast("Subject | None", shown.get("subject"))


def why(error: Exception) -> str:
    """An error of OpenSSL in words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not taken: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        # Some errors have no reason at all, not even an empty one.
        reason = getattr(error, "reason", None) or str(error.args[0])
        return _REASONS.get(reason, reason.replace("_", " ").lower())
    return getattr(error, "strerror", None) or str(error)
