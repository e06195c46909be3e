"""The table of settings about how brokers of a cluster come to each other; a part of the broker's.

Rule of the file: that of `config`. Names are Kafka's, but for the user and the password, which
there are part of a text in Java's form.
"""

from __future__ import annotations

from dataclasses import dataclass

from streamlog.broker.config.settings import NamedSetting, check_table, choice, password, text
from streamlog.errors import ConfigError

PEER_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerConfig:
    """How brokers come to each other.

    Raises:
        ConfigError: a value is out of range.
    """

    listener: str = text(
        "",
        NamedSetting(
            "inter.broker.listener.name",
            "By which of its listeners other brokers come to this one; empty: the first. The same"
            " on all brokers.",
            is_dynamic=False,
        ),
    )
    controller_listener: str = text(
        "",
        NamedSetting(
            "controller.listener.names",
            "By which of its listeners other nodes come to this one as a controller, at the address"
            " in controller.quorum.voters; empty: that of other brokers. One, and the same on all"
            " nodes, those that are only brokers included.",
            is_dynamic=False,
        ),
    )
    mechanism: str = choice(
        "SCRAM-SHA-512",
        NamedSetting(
            "sasl.mechanism.inter.broker.protocol",
            "How a broker proves to others who it is, if that listener has SASL.",
            is_dynamic=False,
        ),
        PEER_MECHANISMS,
    )
    user: str = text(
        "",
        NamedSetting(
            "sasl.inter.broker.username",
            "As which user. Brokers know it from here, before they know any other, and it may do"
            " everything: no client should be it. The same on all brokers.",
            is_dynamic=False,
        ),
    )
    password: str = password(
        NamedSetting("sasl.inter.broker.password", "With which password.", is_dynamic=False)
    )
    checks_name: str = choice(
        "https",
        NamedSetting(
            "ssl.endpoint.identification.algorithm",
            "https: the certificate of another broker has to be for the name that it is reached"
            " by. none: any from an authority that is trusted.",
            is_dynamic=False,
        ),
        ("https", "none"),
    )

    def __post_init__(self) -> None:
        check_table(self)
        if bool(self.user) != bool(self.password):
            raise ConfigError(
                "sasl.inter.broker.username and sasl.inter.broker.password go together: give both,"
                " or neither"
            )
