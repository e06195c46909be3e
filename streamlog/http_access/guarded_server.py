"""Guarded server: the rule which addresses need a login, and the certificates of a server.

The certificates follow their files while the process runs (`followed_files`).
"""

from __future__ import annotations

import ssl
from functools import partial
from typing import Final

from streamlog.clock import Clock
from streamlog.errors import ConfigError
from streamlog.followed_files import FollowedFiles
from streamlog.http_access.access_settings import HttpAccess
from streamlog.listening import is_local, parse_address

_SERVES_PEM: Final = "it has to be a PEM file with the private key and its certificates"


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
    if not access.certificate:
        return None
    paths = [path for path in (access.certificate, access.ca) if path]
    contexts = FollowedFiles(partial(_server_context, access), paths, clock, name="certificates")

    # Called for each handshake, also without SNI.
    def choose(connection: ssl.SSLObject, _name: str | None, _first: ssl.SSLContext) -> None:
        connection.context = contexts.value

    first = _server_context(access)
    first.sni_callback = choose
    return first


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
