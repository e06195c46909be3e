"""Guarded server: the rule which addresses need a login, and the certificates of a server.

Certificates may be replaced while the process runs: the files are looked at when a client connects,
once a second at most. Files that can't be used leave the certificates as they were.
"""

from __future__ import annotations

import ssl
from typing import Final

from streamlog import repeated
from streamlog.clock import Clock
from streamlog.errors import ConfigError
from streamlog.http_access.access_settings import HttpAccess
from streamlog.http_access.user_file import LOOK_INTERVAL_MS, file_stamp
from streamlog.listening import is_local, parse_address

_SERVES_PEM: Final = "it has to be a PEM file with the private key and its certificates"

logger = repeated.logger(__name__)


def check_exposure(address: str, access: HttpAccess, *, setting: str) -> None:
    """Check that an address which others reach has a login and TLS, or is said to be insecure.

    Args:
        address: HOST:PORT.
        access: users and certificates.
        setting: "rest" or "web": the option that has the address.

    Raises:
        ConfigError: the address lacks a login or TLS, or is malformed.
    """
    host, _ = parse_address(address, setting=setting)
    if access.is_insecure or is_local(host):
        return
    lacks = [] if access.has_login else [f"users (--{setting}-users FILE)"]
    if not access.certificate:
        certificate = "listeners.https.ssl.keystore.location=PEM"
        lacks.append(
            f"TLS ({certificate if setting == 'rest' else f'--{setting}-certificate PEM'})"
        )
    if lacks:
        raise ConfigError(
            f"{setting}={address}: other machines can reach this address, so it needs"
            f" {' and '.join(lacks)}; else use 127.0.0.1, or say --{setting}-insecure"
        )


def https_context(access: HttpAccess, clock: Clock) -> ssl.SSLContext | None:
    """Return the TLS context of a server, which follows its files; None without a certificate.

    Raises:
        ConfigError: a file can't be read, or is none of its kind.
    """
    return _Certificates(access, clock).following() if access.certificate else None


def peer_context(access: HttpAccess) -> ssl.SSLContext | None:
    """Return the TLS context for requests to servers of the same settings; None without TLS.

    Raises:
        ConfigError: a file can't be read, or is none of its kind.
    """
    if not access.certificate:
        return None
    context = trusting(access.ca)
    if access.needs_client_certificate:
        _load_certificate(context, access)
    return context


def trusting(ca: str) -> ssl.SSLContext:
    """Return the TLS context of a client that trusts the authorities in a PEM file.

    Args:
        ca: the file; empty: those that this machine trusts.

    Raises:
        ConfigError: the file can't be read, or has no certificate.
    """
    try:
        return ssl.create_default_context(cafile=ca or None)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"the authorities in {ca} can't be used: {_reason(error)}; it has to be a PEM file"
            " with certificates"
        ) from error


class _Certificates:
    """The context of a server, made again when its files have changed."""

    def __init__(self, access: HttpAccess, clock: Clock) -> None:
        self._access, self._clock = access, clock
        # Before the files: those that are replaced meanwhile are read again.
        self._stamps = self._stamped()
        self._context = _server_context(access)
        self._looked_ms = clock.now_ms()

    def following(self) -> ssl.SSLContext:
        """Return a context that gives each connection the certificate of this moment."""

        # Called for each handshake, also without SNI.
        def choose(connection: ssl.SSLObject, _name: str | None, _first: ssl.SSLContext) -> None:
            connection.context = self._present()

        first = _server_context(self._access)
        first.sni_callback = choose
        return first

    def _present(self) -> ssl.SSLContext:
        now_ms = self._clock.now_ms()
        if now_ms - self._looked_ms >= LOOK_INTERVAL_MS:
            self._looked_ms = now_ms
            self._look()
        return self._context

    def _look(self) -> None:
        stamps = self._stamped()
        if stamps == self._stamps:
            return
        self._stamps = stamps
        try:
            self._context = _server_context(self._access)
        except ConfigError as error:
            logger.warning("the certificates stay as they were: %s", error)
        else:
            logger.info("read the certificates in %s again", self._access.certificate)

    def _stamped(self) -> list[tuple[int, ...] | None]:
        return [file_stamp(each) for each in (self._access.certificate, self._access.ca) if each]


def _server_context(access: HttpAccess) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    _load_certificate(context, access)
    if access.needs_client_certificate:
        if not access.ca:
            raise ConfigError(
                "ssl.client.auth=required needs ssl.truststore.location, a PEM file with the"
                " authorities of clients' certificates"
            )
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_verify_locations(access.ca)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"the authorities in {access.ca} can't be used: {_reason(error)}"
            ) from error
    return context


def _load_certificate(context: ssl.SSLContext, access: HttpAccess) -> None:
    try:
        # A function, even without a password: OpenSSL would ask at the terminal otherwise.
        context.load_cert_chain(access.certificate, password=lambda: access.key_password)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"the certificate in {access.certificate} can't be used: {_reason(error)};"
            f" {_SERVES_PEM}"
        ) from error


def _reason(error: Exception) -> str:
    reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
    return str(reason).replace("_", " ").lower()
