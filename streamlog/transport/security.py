"""Security of a connection: TLS and SASL settings, and the client's side of the SASL exchanges.

The mechanisms are PLAIN, SCRAM (RFC 5802) and OAUTHBEARER (RFC 7628). The names of settings are
those of librdkafka and Kafka.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import Any, Final, Protocol, Self, TypeAlias

from streamlog.errors import AuthenticationFailed, ConfigError
from streamlog.protocol.scram import ScramClient, ScramMechanism
from streamlog.replace import replace

PLAIN = "PLAIN"
OAUTHBEARER = "OAUTHBEARER"
MECHANISMS = (PLAIN, *(each.sasl_name for each in ScramMechanism), OAUTHBEARER)


class Exchange(Protocol):
    """One SASL exchange, which authenticates the client."""

    def first(self) -> bytes:
        """Return the client's first message."""
        ...

    def answer(self, data: bytes) -> bytes | None:
        """Return the answer to a message of the broker; None if the exchange is complete.

        Raises:
            AuthenticationFailed: the broker refuses the client, or can't prove that it knows the
                password.
        """
        ...


class PlainExchange:
    """PLAIN (RFC 4616): sends the name and the password."""

    def __init__(self, user: str, password: str) -> None:
        self._message = f"\0{user}\0{password}".encode()

    def first(self) -> bytes:
        """See `Exchange`."""
        return self._message

    def answer(self, data: bytes) -> bytes | None:  # noqa: ARG002 - it says nothing
        """See `Exchange`."""
        return None


class ScramExchange:
    """SCRAM: each side proves that it knows the password, without sending it."""

    def __init__(self, mechanism: ScramMechanism, user: str, password: str, *, nonce: str) -> None:
        self._client = ScramClient(mechanism, user, password, nonce=nonce)
        self._has_proven = False

    def first(self) -> bytes:
        """See `Exchange`."""
        return self._client.first()

    def answer(self, data: bytes) -> bytes | None:
        """See `Exchange`."""
        # The first message of the broker is the challenge, the second one its own proof.
        if not self._has_proven:
            self._has_proven = True
            return self._client.final(data)
        self._client.check(data)
        return None


class BearerExchange:
    """OAUTHBEARER: sends a token (RFC 7628, KIP-255)."""

    def __init__(self, token: str) -> None:
        self._token = token

    def first(self) -> bytes:
        """See `Exchange`."""
        # RFC 7628, section 3.1: a GS2 header, then key-value pairs that end with \x01.
        return f"n,,\x01auth=Bearer {self._token}\x01\x01".encode()

    def answer(self, data: bytes) -> bytes | None:
        """See `Exchange`.

        A broker that refuses the token sends the reason first. The client must answer with one byte
        before the broker completes the refusal (RFC 7628, section 3.2.3).
        """
        return b"\x01" if data else None


def exchange_of(mechanism: str, user: str, secret: str, *, nonce: str) -> Exchange:
    """Return the exchange of a mechanism.

    Args:
        mechanism: the SASL name of the mechanism.
        user: the user's name.
        secret: the password, or the token.
        nonce: a random string that is used once.

    Raises:
        AuthenticationFailed: the mechanism is unknown.
    """
    if mechanism == PLAIN:
        return PlainExchange(user, secret)
    if mechanism == OAUTHBEARER:
        return BearerExchange(secret)
    scram = ScramMechanism.of(mechanism)
    if scram is None:
        raise AuthenticationFailed(
            f"unknown SASL mechanism {mechanism!r}: use one of {', '.join(MECHANISMS)}"
        )
    return ScramExchange(scram, user, secret, nonce=nonce)


PLAINTEXT: Final = "PLAINTEXT"
SSL: Final = "SSL"
SASL_PLAINTEXT: Final = "SASL_PLAINTEXT"
SASL_SSL: Final = "SASL_SSL"
PROTOCOLS: Final = (PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL)
ENVIRONMENT_PREFIX: Final = "STREAMLOG_"
_NAME: Final = "name"
_IDENTIFICATION: Final = "ssl.endpoint.identification.algorithm"

Secret: TypeAlias = str | Callable[[], str]
"""A secret, or a function that returns it. The function is called in a thread for every connection,
so it may block and return a new token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """The security settings of connections to brokers.

    Raises:
        ConfigError: a setting is unknown, is missing, or contradicts another.
    """

    protocol: str = field(default=PLAINTEXT, metadata={_NAME: "security.protocol"})
    """PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL."""
    ca_file: str = field(default="", metadata={_NAME: "ssl.ca.location"})
    """PEM file of the authorities that are trusted; empty: those of this machine."""
    certificate_file: str = field(default="", metadata={_NAME: "ssl.certificate.location"})
    """PEM file of the client's certificate, with the chain to its authority."""
    key_file: str = field(default="", metadata={_NAME: "ssl.key.location"})
    """PEM file of the client's private key; empty: it is in `certificate_file`."""
    key_password: str = field(default="", repr=False, metadata={_NAME: "ssl.key.password"})
    checks_name: str = field(
        default="https", metadata={_NAME: "ssl.endpoint.identification.algorithm"}
    )
    """"https": a broker's certificate must be for the host name of the connection; "none": it need
    not."""
    mechanism: str = field(default="", metadata={_NAME: "sasl.mechanism"})
    """PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER."""
    user: str = field(default="", metadata={_NAME: "sasl.username"})
    password: Secret = field(default="", repr=False, metadata={_NAME: "sasl.password"})
    token: Secret = field(default="", repr=False, metadata={_NAME: "sasl.oauthbearer.token"})
    """The token for OAUTHBEARER, or a function that returns it."""
    context: ssl.SSLContext | None = None
    """A TLS context to use instead of the files."""

    def __post_init__(self) -> None:
        if self.protocol not in PROTOCOLS:
            raise ConfigError(
                f"security.protocol={self.protocol!r}: use one of {', '.join(PROTOCOLS)}"
            )
        if self.checks_name not in ("https", "none", ""):
            raise ConfigError(
                f"ssl.endpoint.identification.algorithm={self.checks_name!r}: use https or none"
            )
        if self.has_sasl:
            self._check_sasl()
        # Otherwise credentials would be ignored without a word, and the client be anonymous.
        elif self.mechanism or self.user or self.password or self.token:
            raise ConfigError(
                f"sasl settings are given, but security.protocol is {self.protocol}: set it to"
                " SASL_SSL (or SASL_PLAINTEXT)"
            )

    @classmethod
    def of(cls, settings: Mapping[str, str]) -> Self:
        """Make an instance from settings by their Kafka names.

        Raises:
            ConfigError: a setting is unknown, is missing, or contradicts another.
        """
        names = {each.metadata[_NAME]: each.name for each in fields(cls) if each.metadata}
        for name in settings:
            if name not in names:
                near = get_close_matches(name, names, n=2)
                hint = f": did you mean {' or '.join(map(repr, near))}?" if near else ";"
                raise ConfigError(
                    f"unknown security setting {name!r}{hint} there are: {', '.join(names)}"
                )
        given: dict[str, Any] = {names[name]: value for name, value in settings.items()}
        for name in ("protocol", "mechanism"):
            if name in given:
                given[name] = given[name].upper()
        return cls(**given)

    @property
    def has_tls(self) -> bool:
        """Whether the connection uses TLS."""
        return self.protocol in (SSL, SASL_SSL)

    @property
    def has_sasl(self) -> bool:
        """Whether the client authenticates by SASL."""
        return self.protocol in (SASL_PLAINTEXT, SASL_SSL)

    @property
    def secret(self) -> Secret:
        """The password or the token."""
        return self.token if self.mechanism == OAUTHBEARER else self.password

    def loaded(self) -> Self:
        """Return a copy with its files read, for use by many connections.

        Raises:
            ConfigError: see `tls`.
        """
        return replace(self, context=self.tls())

    def tls(self) -> ssl.SSLContext | None:
        """Return the TLS context for connections; None without TLS.

        Raises:
            ConfigError: a file is missing, or holds no valid certificate or key.
        """
        if not self.has_tls:
            return None
        if self.context is not None:
            return self.context
        try:
            # With a file, only the authorities in it are trusted, not those of this machine.
            context = ssl.create_default_context(cafile=self.ca_file or None)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"ssl.ca.location={self.ca_file}: {_why(error)}; it has to be a PEM file with"
                " certificates of authorities"
            ) from None
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        # A certificate of a trusted authority is always required; only the name check is optional.
        context.check_hostname = self.checks_name == "https"
        if self.certificate_file:
            try:
                # With a function, a missing password is an error. Without one, OpenSSL would ask on
                # the terminal.
                context.load_cert_chain(
                    self.certificate_file, self.key_file or None, lambda: self.key_password
                )
            except (OSError, ValueError) as error:
                raise ConfigError(
                    f"ssl.certificate.location={self.certificate_file}: {_why(error)}; it has to be"
                    " a PEM file with a certificate, and its key in it or in ssl.key.location"
                ) from None
        return context

    def _check_sasl(self) -> None:
        if self.mechanism not in MECHANISMS:
            given = f"sasl.mechanism={self.mechanism!r}" if self.mechanism else "no sasl.mechanism"
            raise ConfigError(
                f"security.protocol={self.protocol} with {given}: use one of"
                f" {', '.join(MECHANISMS)}"
            )
        if self.mechanism == OAUTHBEARER:
            if not self.token:
                raise ConfigError("OAUTHBEARER needs a token: set sasl.oauthbearer.token")
        elif not self.user or not self.password:
            raise ConfigError(
                f"{self.mechanism} needs a user and a password: set sasl.username and sasl.password"
            )


def security_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the security settings in environment variables, by Kafka's names."""
    return {name: environment[each] for name, each in variables().items() if each in environment}


def variables() -> dict[str, str]:
    """Return the environment variable of each security setting, by Kafka's names."""
    names = [each.metadata[_NAME] for each in fields(Security) if each.metadata]
    return {name: variable_of(name) for name in names}


def variable_of(name: str) -> str:
    """Return the name of a setting's environment variable."""
    return ENVIRONMENT_PREFIX + name.upper().replace(".", "_")


def _why(error: Exception) -> str:
    return getattr(error, "strerror", None) or "it can't be read"
