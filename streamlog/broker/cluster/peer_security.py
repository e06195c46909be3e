"""How brokers of a cluster come to each other: by which listener, and what they prove.

Everything follows from the settings of one broker, which on all of them have to agree. With TLS a
broker shows its own certificate; with SASL it is a user that all of them know from their
settings: users of clients are kept in the metadata, which brokers have to reach first.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from streamlog.broker.config.broker import BrokerConfig
from streamlog.broker.config.listeners import Listener, listeners_of, protocols_of
from streamlog.broker.config.security import AUTHORIZER_NONE, CLIENT_AUTH_NONE
from streamlog.broker.security.acl_authorizer import super_users_of
from streamlog.broker.security.principals import ANONYMOUS, of_user
from streamlog.broker.security.users import Credentials
from streamlog.errors import ConfigError
from streamlog.protocol.scram import (
    ITERATIONS_DEFAULT,
    SALT_BYTES,
    ScramCredential,
    ScramMechanism,
)
from streamlog.transport.security import Security

_BROKERS = "inter.broker.listener.name"
_CONTROLLERS = "controller.listener.names"


def peer_listener(config: BrokerConfig) -> Listener:
    """By which brokers come to each other.

    Raises:
        ConfigError: no listener has the name that is set.
    """
    return _named(_BROKERS, config.peers.listener, _listeners(config))


def controller_listener(config: BrokerConfig) -> Listener:
    """By which nodes come to controllers.

    A node that is none has no such listener itself, and knows how it is secured by the map of names
    alone.

    Raises:
        ConfigError: no listener has the name that is set.
    """
    name = config.peers.controller_listener
    if not name:
        return peer_listener(config)
    listeners = _listeners(config)
    protocol = protocols_of(config.security).get(name.upper())
    if not config.quorum.is_controller and protocol is not None:
        return Listener(name=name.upper(), protocol=protocol)
    return _named(_CONTROLLERS, name, listeners)


def peer_security(config: BrokerConfig, listener: Listener) -> Security:
    """How a broker with these settings comes to others at such a listener.

    Raises:
        ConfigError: it lacks what that listener asks for.
    """
    security, peers = config.security, config.peers
    if listener.has_sasl and not peers.user:
        raise ConfigError(
            f"brokers come to each other by listener {listener.name}, which is {listener.protocol}:"
            " sasl.inter.broker.username and sasl.inter.broker.password are needed"
        )
    if listener.has_sasl and peers.mechanism not in security.sasl_mechanisms.split(","):
        raise ConfigError(
            f"sasl.mechanism.inter.broker.protocol={peers.mechanism} is none of"
            f" sasl.enabled.mechanisms={security.sasl_mechanisms}"
        )
    shows_own = listener.has_tls and security.client_auth != CLIENT_AUTH_NONE
    return Security(
        protocol=listener.protocol,
        ca_file=security.truststore if listener.has_tls else "",
        certificate_file=security.keystore if shows_own else "",
        key_password=security.key_password,
        checks_name=peers.checks_name,
        mechanism=peers.mechanism if listener.has_sasl else "",
        user=peers.user if listener.has_sasl else "",
        password=peers.password if listener.has_sasl else "",
    )


def check_trusted(config: BrokerConfig, listener: Listener, principal: str | None) -> None:
    """Raise ConfigError if ACLs are checked, and brokers may not do what they have to.

    `principal` is who their certificates say that they are; None without any.
    """
    if config.security.authorizer == AUTHORIZER_NONE or listener.has_sasl:
        return
    if (principal or ANONYMOUS) in super_users_of(config.security.super_users):
        return
    if principal is None:
        raise ConfigError(
            f"authorizer.class.name={config.security.authorizer}, and brokers prove nothing of who"
            f" they are on listener {listener.name} ({listener.protocol}), by which they come to"
            " each other: use SSL with ssl.client.auth=required, or SASL_SSL, for it"
        )
    raise ConfigError(
        f"authorizer.class.name={config.security.authorizer}, and this broker is {principal} to"
        f" others: add that to super.users on all brokers (super.users={principal};...)"
    )


def peer_principals(config: BrokerConfig) -> frozenset[str]:
    """Who brokers are to each other by SASL; they may do everything."""
    return frozenset({of_user(config.peers.user)}) if config.peers.user else frozenset()


def peer_credentials(config: BrokerConfig) -> Credentials:
    """What other brokers' proofs are checked against, made of what this one would prove itself."""
    if not config.peers.user:
        return {}
    return {
        config.peers.user: {
            each: ScramCredential.of(
                each, config.peers.password, secrets.token_bytes(SALT_BYTES), ITERATIONS_DEFAULT
            )
            for each in ScramMechanism
        }
    }


def _listeners(config: BrokerConfig) -> Sequence[Listener]:
    """Without any in the settings there is one, which has no security."""
    return listeners_of(config.security) or (Listener(),)


def _named(setting: str, name: str, listeners: Sequence[Listener]) -> Listener:
    if not name:
        return listeners[0]
    found = next((each for each in listeners if each.name == name.upper()), None)
    if found is None:
        there = ", ".join(each.name for each in listeners)
        raise ConfigError(f"{setting}={name} is none of the listeners, which are {there}")
    return found
