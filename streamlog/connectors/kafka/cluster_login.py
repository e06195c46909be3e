"""Cluster login: how a connector reaches another cluster, by the names of Kafka's settings.

In a configuration they are `bootstrap.servers`, `security.protocol`, `sasl.mechanism`,
`ssl.ca.location` and so on, as docs/security.md has them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, Literal, TypeAlias

import msgspec

from streamlog.allowed_paths import check_path
from streamlog.client.producer.refused_records import is_refusal
from streamlog.connect import ConnectError, Fenced, Refused, Retriable, Secret
from streamlog.errors import (
    AuthenticationFailed,
    ConfigError,
    LogError,
    NotAuthorized,
    ProducerFenced,
    StreamlogError,
)
from streamlog.log import Log
from streamlog.transport.security import Security

SecurityProtocol: TypeAlias = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
SaslMechanism: TypeAlias = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]


LOST_PRODUCER: Final = frozenset({45, 48, 49, 59})
"""Kafka's codes by which a cluster no longer knows a producer as it was, and a new one can go on:
a sequence or a transaction that is out of order, an id that is another's or forgotten."""


class SaslLogin(msgspec.Struct, frozen=True, kw_only=True):
    """A user, or a token.

    Attributes:
        mechanism: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER.
        username: the user.
        password: the user's password.
        oauthbearer_token: the token, for OAUTHBEARER.
    """

    mechanism: SaslMechanism
    username: str = ""
    password: Secret | None = None
    oauthbearer_token: Secret | None = None


class SslFiles(msgspec.Struct, frozen=True, kw_only=True):
    """Files of PEM by which brokers and client know each other.

    Attributes:
        ca_location: the authorities that are trusted; "" for those of this machine.
        certificate_location: the client's certificate, with the chain to its authority.
        key_location: the client's key; "" if it is in the file of the certificate.
        key_password: the password of the key.
        endpoint_identification_algorithm: "https" compares a broker's host name with its
            certificate, "none" does not.
    """

    ca_location: str = ""
    certificate_location: str = ""
    key_location: str = ""
    key_password: Secret | None = None
    endpoint_identification_algorithm: Literal["https", "none"] = "https"


class ClusterLogin(msgspec.Struct, frozen=True, kw_only=True):
    """Where a cluster is, and how to log in there; the settings of both connectors."""

    bootstrap_servers: str
    security_protocol: SecurityProtocol
    sasl: SaslLogin | None
    ssl: SslFiles | None

    def check(self) -> None:
        """Refuse settings that do not go together.

        Raises:
            ConfigError: the message names the setting.
        """
        self.log("check")
        for name in ("ca_location", "certificate_location", "key_location"):
            if path := getattr(self.ssl, name, ""):
                check_path(f"ssl.{name}", path)
        self._security(shown=True)

    def log(self, client_id: str, *, security: Security | None = None) -> Log:
        """Return the log of the cluster, not open yet.

        Raises:
            ConfigError: `bootstrap_servers` has no address.
        """
        try:
            return Log.open(
                f"kafka://{self.bootstrap_servers}", client_id=client_id, security=security
            )
        except ConfigError as error:
            raise ConfigError(f"bootstrap_servers: {error}") from error

    def opened(self, client_id: str) -> Log:
        """Return the log of the cluster with its security settings, not open yet.

        Raises:
            ConfigError: a file can't be read, or a secret is not resolved.
        """
        # Without TLS in the URL: `security_protocol` alone says whether there is any.
        return self.log(client_id, security=self._security())

    def _security(self, *, shown: bool = False) -> Security:
        """Return the client's settings; with `shown`, references stand for secrets."""
        settings: dict[str, str] = {"security.protocol": self.security_protocol}
        for area, part in (("sasl", self.sasl), ("ssl", self.ssl)):
            for name in () if part is None else part.__struct_fields__:
                value: object = getattr(part, name)
                if isinstance(value, Secret):
                    value = value.shown if shown else value.reveal()
                if value:
                    settings[f"{area}.{name.replace('_', '.')}"] = str(value)
        if self.ssl is not None and self.security_protocol not in {"SSL", "SASL_SSL"}:
            raise ConfigError(
                f"ssl is set, and security_protocol is {self.security_protocol}: set it to SSL or "
                "SASL_SSL"
            )
        return Security.of(settings)


@asynccontextmanager
async def errors_of_cluster(where: str) -> AsyncIterator[None]:
    """Turn the client's errors into those of a connector.

    Args:
        where: the cluster, for the text of an error.

    Raises:
        Fenced: a newer task of this sink has taken the partition over.
        Retriable: the cluster can't answer now.
        ConnectionError: the client can't be used any more, and a new one may.
        ConnectError: the cluster refuses records, and names none.
        Refused: it refuses the login, or lacks a right.
        ConfigError: it refuses anything else for good, such as a name.
    """
    try:
        yield
    except (ConnectError, ConfigError):
        raise
    except StreamlogError as error:
        raise connector_error(where, error) from error


def connector_error(where: str, error: StreamlogError) -> Exception:
    """Return what an error of the client is to the runtime; see `errors_of_cluster`."""
    cause = error.__cause__ if isinstance(error.__cause__, StreamlogError) else error
    text = f"{where}: {error}"
    if isinstance(error, ProducerFenced) or isinstance(cause, ProducerFenced):
        return Fenced(text)
    if isinstance(cause, AuthenticationFailed | NotAuthorized):
        return Refused(f"{text}; look at the login, and at the rights of its user")
    # They blame what was sent, and name no record: the runtime finds it by halves.
    if is_refusal(cause):
        return ConnectError(text)
    return Retriable(text) if error.retriable or error.aborts_transaction else _lasting(error, text)


def _lasting(error: StreamlogError, text: str) -> Exception:
    """Return what an error is that neither passes nor blames a record."""
    cause = error.__cause__ if isinstance(error.__cause__, StreamlogError) else error
    if not isinstance(cause, LogError):
        # A commit without an answer, for one: the runtime connects anew, and recovers.
        return ConnectionError(text) if error.fatal else ConnectError(text)
    # Else a name, a policy, a timeout that is too long: it refuses whatever is sent.
    return ConnectionError(text) if cause.code in LOST_PRODUCER else ConfigError(text)
