"""SecurityConfig: the table of settings for listeners, TLS, SASL and ACLs.

A part of the settings in `config/broker`. Names are Kafka's, except those of PEM files, which need
no password of a store. These settings hold while the broker runs: access can't be changed over the
wire.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from streamlog.broker.config.settings import (
    INT_MAX,
    Form,
    NamedSetting,
    boolean,
    check_table,
    choice,
    integer,
    items,
    password,
    text,
    words,
)
from streamlog.errors import ConfigError

PLAINTEXT = "PLAINTEXT"
SSL = "SSL"
SASL_PLAINTEXT = "SASL_PLAINTEXT"
SASL_SSL = "SASL_SSL"
PROTOCOLS = (PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL)
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
TLS_VERSIONS = ("TLSv1.2", "TLSv1.3")
CLIENT_AUTH_NONE = "none"
CLIENT_AUTH_REQUESTED = "requested"
CLIENT_AUTH_REQUIRED = "required"
AUTHORIZER_NONE = "none"
AUTHORIZER_STANDARD = "standard"
MIRROR_PATHS = "mirror.allowed.paths"
MIRROR_VARIABLES = "mirror.env.allowlist.pattern"
DIRECTORIES = Form(r"/[^,]*(,/[^,]*)*|", "absolute paths of directories, separated by commas")
DEFAULT_MAP = ",".join(f"{each}:{each}" for each in PROTOCOLS)


@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityConfig:
    """Settings of listeners, authentication and authorization.

    Raises:
        ConfigError: a value is out of range.
    """

    listeners: str = text(
        "",
        NamedSetting(
            "listeners",
            "Where the broker listens, a comma-separated list of NAME://HOST:PORT, instead of"
            " --listen. A name is a security protocol, or gets one from"
            " listener.security.protocol.map. Without a host, it listens on all addresses.",
            is_dynamic=False,
        ),
    )
    advertised_listeners: str = text(
        "",
        NamedSetting(
            "advertised.listeners",
            "The addresses that clients get instead, a comma-separated list of NAME://HOST:PORT,"
            " for listeners behind a gateway or with a certificate for another name.",
            is_dynamic=False,
        ),
    )
    protocol_map: str = text(
        DEFAULT_MAP,
        NamedSetting(
            "listener.security.protocol.map",
            "The security protocol of each listener, a comma-separated list of NAME:PROTOCOL."
            " PLAINTEXT: none. SSL: TLS. SASL_PLAINTEXT, SASL_SSL: clients have to authenticate.",
            is_dynamic=False,
        ),
    )
    keystore: str = text(
        "",
        NamedSetting(
            "ssl.keystore.location",
            "A PEM file with the broker's certificate, the certificates up to its authority, and"
            " its private key.",
            is_dynamic=False,
        ),
    )
    key_password: str = password(
        NamedSetting(
            "ssl.key.password",
            "The password of the private key, if it is encrypted.",
            is_dynamic=False,
        )
    )
    truststore: str = text(
        "",
        NamedSetting(
            "ssl.truststore.location",
            "A PEM file with the certificates of the authorities against which clients'"
            " certificates are checked.",
            is_dynamic=False,
        ),
    )
    client_auth: str = choice(
        CLIENT_AUTH_NONE,
        NamedSetting(
            "ssl.client.auth",
            "Whether clients are asked for a certificate on listeners with TLS, and disconnected"
            " without one (required). On a listener with the protocol SSL the principal is its"
            " subject, such as User:CN=shop,O=example.",
            is_dynamic=False,
        ),
        (CLIENT_AUTH_NONE, CLIENT_AUTH_REQUESTED, CLIENT_AUTH_REQUIRED),
    )
    principal_rules: str = text(
        "DEFAULT",
        NamedSetting(
            "ssl.principal.mapping.rules",
            "How a certificate's subject becomes a user name: a comma-separated list of rules, of"
            " which the first that matches the whole subject applies. RULE:PATTERN/REPLACEMENT/,"
            " followed by L or U for lower or upper case, with $1 for the pattern's first group;"
            " DEFAULT: the unchanged subject. A client whose certificate matches no rule is"
            " disconnected.",
            is_dynamic=False,
        ),
    )
    tls_versions: str = words(
        ",".join(TLS_VERSIONS),
        NamedSetting("ssl.enabled.protocols", "The accepted versions of TLS.", is_dynamic=False),
        TLS_VERSIONS,
    )
    ciphers: str = text(
        "",
        NamedSetting(
            "ssl.cipher.suites",
            "Ciphers for TLS 1.2 by their OpenSSL names, separated by colons or commas; empty: the"
            " defaults of OpenSSL.",
            is_dynamic=False,
        ),
    )

    sasl_mechanisms: str = words(
        ",".join(MECHANISMS[1:3]),
        NamedSetting(
            "sasl.enabled.mechanisms",
            "The mechanisms by which clients of listeners with SASL may authenticate. PLAIN sends"
            " the password itself: use it only on a listener with TLS.",
            is_dynamic=False,
        ),
        MECHANISMS,
    )
    sasl_receive_bytes_max: int = integer(
        512 * 1024,
        NamedSetting(
            "sasl.server.max.receive.size",
            "The largest request of a client that is not authenticated yet.",
            "bytes",
            is_dynamic=False,
        ),
        minimum=1024,
        maximum=INT_MAX,
    )
    failed_authentication_delay_ms: int = integer(
        100,
        NamedSetting(
            "connection.failed.authentication.delay.ms",
            "How long the response to a failed authentication is delayed; then the client is"
            " disconnected.",
            "ms",
            is_dynamic=False,
        ),
        maximum=30_000,
    )
    connections_max_reauth_ms: int = integer(
        0,
        NamedSetting(
            "connections.max.reauth.ms",
            "How soon a client of a listener with SASL has to authenticate again on the same"
            " connection (KIP-368); otherwise it is disconnected. 0: never, except when its token"
            " expires.",
            "ms",
            is_dynamic=False,
        ),
    )
    jwks_url: str = text(
        "",
        NamedSetting(
            "sasl.oauthbearer.jwks.endpoint.url",
            "For OAUTHBEARER: the keys with which signed tokens are checked, a JSON Web Key Set at"
            " an https:// or file:// URL. Needs the extra streamlog-py[oauth].",
            is_dynamic=False,
        ),
    )
    jwks_refresh_ms: int = integer(
        3_600_000,
        NamedSetting(
            "sasl.oauthbearer.jwks.endpoint.refresh.ms",
            "The interval at which the keys are fetched; they are also fetched when a token names"
            " an unknown key.",
            "ms",
            is_dynamic=False,
        ),
        minimum=1_000,
    )
    token_audience: str = text(
        "",
        NamedSetting(
            "sasl.oauthbearer.expected.audience",
            "The accepted audiences of tokens, a comma-separated list; empty: any.",
            is_dynamic=False,
        ),
    )
    token_issuer: str = text(
        "",
        NamedSetting(
            "sasl.oauthbearer.expected.issuer",
            "The accepted issuer of tokens; empty: any that has signed with one of the keys.",
            is_dynamic=False,
        ),
    )
    token_user_claim: str = text(
        "sub",
        NamedSetting(
            "sasl.oauthbearer.sub.claim.name",
            "The claim of a token that contains the user name.",
            is_dynamic=False,
        ),
    )
    token_clock_skew_s: int = integer(
        30,
        NamedSetting(
            "sasl.oauthbearer.clock.skew.seconds",
            "The accepted difference between the clocks of the broker and of the issuer of tokens.",
            is_dynamic=False,
        ),
        maximum=3_600,
    )
    unsecured_tokens: bool = boolean(
        NamedSetting(
            "sasl.oauthbearer.unsecured.enable",
            "Whether tokens without a signature are accepted, which anyone can make for any user:"
            " for tests only.",
            is_dynamic=False,
        ),
        default=False,
    )

    authorizer: str = choice(
        AUTHORIZER_NONE,
        NamedSetting(
            "authorizer.class.name",
            "Whether operations of clients are checked against ACLs (standard). Clients in the"
            " broker's process may do everything.",
            is_dynamic=False,
        ),
        (AUTHORIZER_NONE, AUTHORIZER_STANDARD),
    )
    super_users: str = text(
        "",
        NamedSetting(
            "super.users",
            "Principals that may do everything, separated by semicolons, such as"
            " User:admin;User:CN=ops.",
            is_dynamic=False,
        ),
    )
    allow_if_no_acl: bool = boolean(
        NamedSetting(
            "allow.everyone.if.no.acl.found",
            "Whether everyone may use a topic, group or cluster that has no ACL.",
            is_dynamic=False,
        ),
        default=False,
    )

    # Kafka's names for the same limits of its providers (KIP-993, KIP-887). Empty allows nothing:
    # a user who may create a link chooses the server that gets the login.
    mirror_paths: str = items(
        "",
        NamedSetting(
            MIRROR_PATHS,
            "Directories of this broker below which the settings of links may name files:"
            " ${file:PATH} in a login, and ssl.*.location. Links in the file system count as what"
            " they lead to. Empty: none. A user who may alter the cluster can send what these"
            " files contain to a server of their choice, so keep nothing else there.",
            is_dynamic=False,
        ),
        DIRECTORIES,
    )
    mirror_variables: str = text(
        "",
        NamedSetting(
            MIRROR_VARIABLES,
            "The environment variables of this broker that the settings of links may name as"
            " ${env:NAME}: a regular expression that has to match a whole name, such as MIRROR_.*;"
            " empty: none.",
            is_dynamic=False,
        ),
    )

    def __post_init__(self) -> None:
        check_table(self)
        self._check_tokens()
        try:
            re.compile(self.mirror_variables)
        except re.error as error:
            raise ConfigError(
                f"{MIRROR_VARIABLES}={self.mirror_variables!r} is no regular expression: {error}"
            ) from None
        if self.client_auth != CLIENT_AUTH_NONE and not self.truststore:
            raise ConfigError(
                f"ssl.client.auth={self.client_auth} needs ssl.truststore.location, a PEM file with"
                " the authorities that clients' certificates are checked against"
            )

    def _check_tokens(self) -> None:
        if "OAUTHBEARER" not in self.sasl_mechanisms.split(","):
            return
        if bool(self.jwks_url) == self.unsecured_tokens:
            raise ConfigError(
                "OAUTHBEARER needs sasl.oauthbearer.jwks.endpoint.url, the keys with which tokens"
                " are checked; or, for tests only, sasl.oauthbearer.unsecured.enable=true"
            )
