"""RegistryConfig: the table of settings of a broker's schema registry.

A part of the settings in `config/broker`. Kafka has no registry: the names are Confluent's, after
`schema.registry.`.
"""

from __future__ import annotations

from dataclasses import dataclass

from streamlog.broker.config.settings import (
    INT_MAX,
    NamedSetting,
    boolean,
    check_table,
    choice,
    integer,
    text,
)

LEVELS = (
    "NONE",
    "BACKWARD",
    "BACKWARD_TRANSITIVE",
    "FORWARD",
    "FORWARD_TRANSITIVE",
    "FULL",
    "FULL_TRANSITIVE",
)
AUTHENTICATION_NONE = "NONE"
AUTHENTICATION_BASIC = "BASIC"


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryConfig:
    """Settings of the schema registry.

    Raises:
        ConfigError: a value is out of range.
    """

    listener: str = text(
        "",
        NamedSetting(
            "schema.registry.listener",
            "HOST:PORT at which the broker serves the schema registry; empty: it does not. Needs"
            " the extra streamlog-py[registry].",
            is_dynamic=False,
        ),
    )
    has_tls: bool = boolean(
        NamedSetting(
            "schema.registry.ssl.enable",
            "Whether the schema registry speaks HTTPS, with the certificate in"
            " ssl.keystore.location. Required, with authentication, on an address that other"
            " machines can reach.",
            is_dynamic=False,
        ),
        default=False,
    )
    authentication: str = choice(
        AUTHENTICATION_NONE,
        NamedSetting(
            "schema.registry.authentication.method",
            "BASIC: clients of the schema registry authenticate as a SCRAM user of the broker, by"
            " HTTP basic authentication. NONE: they are User:ANONYMOUS.",
            is_dynamic=False,
        ),
        (AUTHENTICATION_NONE, AUTHENTICATION_BASIC),
    )
    compatibility_level: str = choice(
        "BACKWARD",
        NamedSetting(
            "schema.registry.schema.compatibility.level",
            "The compatibility level of subjects for which none is configured.",
            is_dynamic=False,
        ),
        LEVELS,
    )
    schema_bytes_max: int = integer(
        1024 * 1024,
        NamedSetting(
            "schema.registry.max.schema.bytes",
            "The largest schema; a larger one is refused.",
            "bytes",
            is_dynamic=False,
        ),
        minimum=1024,
        maximum=64 * 1024 * 1024,
    )
    timeout_ms: int = integer(
        20_000,
        NamedSetting(
            "schema.registry.timeout.ms",
            "How long a write waits for a primary, for earlier writes, and until it is committed;"
            " then it fails with 50002, 50003 or 50004.",
            "ms",
            is_dynamic=False,
        ),
        minimum=1,
        maximum=INT_MAX,
    )

    def __post_init__(self) -> None:
        check_table(self)
