"""SecurityConfig: the table of settings about listeners, TLS, SASL and ACLs; nothing else.

As in `config`, and a part of it; the names are Kafka's, but for those of files in PEM, which need
no password of a store. What is given here holds from the start of the broker to its end: nobody
changes over the wire who may come in.
"""

from __future__ import annotations

from dataclasses import dataclass

from streamlog.broker.config.settings import (
    INT_MAX,
    NamedSetting,
    check_table,
    choice,
    password,
    text,
    truth,
    whole,
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
DEFAULT_MAP = ",".join(f"{each}:{each}" for each in PROTOCOLS)


@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityConfig:
    """Who is listened to, and what who has come may do.

    Raises:
        ConfigError: a value is out of range.
    """

    listeners: str = text(
        "",
        NamedSetting(
            "listeners",
            "Where the broker listens, NAME://HOST:PORT with commas between them, instead of"
            " --listen. A name is a security protocol, or is given one by"
            " listener.security.protocol.map. No host means all addresses.",
            is_dynamic=False,
        ),
    )
    advertised_listeners: str = text(
        "",
        NamedSetting(
            "advertised.listeners",
            "What clients are told to connect to instead, NAME://HOST:PORT with commas between"
            " them, for listeners behind a gateway or with a certificate for another name.",
            is_dynamic=False,
        ),
    )
    protocol_map: str = text(
        DEFAULT_MAP,
        NamedSetting(
            "listener.security.protocol.map",
            "The security protocol of each listener, NAME:PROTOCOL with commas between them."
            " PLAINTEXT: none. SSL: TLS. SASL_PLAINTEXT, SASL_SSL: clients have to prove who they"
            " are.",
            is_dynamic=False,
        ),
    )
    keystore: str = text(
        "",
        NamedSetting(
            "ssl.keystore.location",
            "A PEM file with the broker's certificate, the certificates that lead to its"
            " authority, and its private key.",
            is_dynamic=False,
        ),
    )
    key_password: str = password(
        NamedSetting(
            "ssl.key.password", "Of the private key, if it is encrypted.", is_dynamic=False
        )
    )
    truststore: str = text(
        "",
        NamedSetting(
            "ssl.truststore.location",
            "A PEM file with the certificates of the authorities that clients' certificates are"
            " checked against.",
            is_dynamic=False,
        ),
    )
    client_auth: str = choice(
        CLIENT_AUTH_NONE,
        NamedSetting(
            "ssl.client.auth",
            "Whether clients are asked for a certificate on listeners with TLS, and hung up on"
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
            "How a user's name is made of a certificate's subject: rules with commas between them,"
            " the first that matches all of it holds. RULE:PATTERN/REPLACEMENT/ with L or U behind"
            " it for lower or upper case, $1 standing for the pattern's first group; DEFAULT: the"
            " subject as it is. Who has a certificate that no rule matches is hung up on.",
            is_dynamic=False,
        ),
    )
    tls_versions: str = words(
        ",".join(TLS_VERSIONS),
        NamedSetting("ssl.enabled.protocols", "Versions of TLS that are spoken.", is_dynamic=False),
        TLS_VERSIONS,
    )
    ciphers: str = text(
        "",
        NamedSetting(
            "ssl.cipher.suites",
            "Ciphers for TLS 1.2 in the words of OpenSSL, with colons or commas between them;"
            " none: those that OpenSSL takes for good.",
            is_dynamic=False,
        ),
    )

    sasl_mechanisms: str = words(
        ",".join(MECHANISMS[1:3]),
        NamedSetting(
            "sasl.enabled.mechanisms",
            "How clients of listeners with SASL may prove who they are. PLAIN sends the password"
            " itself: it belongs on a listener with TLS.",
            is_dynamic=False,
        ),
        MECHANISMS,
    )
    sasl_receive_bytes_max: int = whole(
        512 * 1024,
        NamedSetting(
            "sasl.server.max.receive.size",
            "The largest request of somebody who has not proven yet who it is.",
            "bytes",
            is_dynamic=False,
        ),
        least=1024,
        most=INT_MAX,
    )
    failed_authentication_delay_ms: int = whole(
        100,
        NamedSetting(
            "connection.failed.authentication.delay.ms",
            "How long a refused client waits for the refusal, after which it is hung up on.",
            "ms",
            is_dynamic=False,
        ),
        most=30_000,
    )
    connections_max_reauth_ms: int = whole(
        0,
        NamedSetting(
            "connections.max.reauth.ms",
            "After how long a client of a listener with SASL has to prove again who it is, on the"
            " same connection (KIP-368); who does not is hung up on. 0: never, but when a token"
            " ends.",
            "ms",
            is_dynamic=False,
        ),
    )
    jwks_url: str = text(
        "",
        NamedSetting(
            "sasl.oauthbearer.jwks.endpoint.url",
            "For OAUTHBEARER: the keys that signed tokens are checked with, a JSON Web Key Set at"
            " an https:// or file:// URL. Needs the extra streamlog[oauth].",
            is_dynamic=False,
        ),
    )
    jwks_refresh_ms: int = whole(
        3_600_000,
        NamedSetting(
            "sasl.oauthbearer.jwks.endpoint.refresh.ms",
            "How often they are fetched; also when a token names a key that is not among them.",
            "ms",
            is_dynamic=False,
        ),
        least=1_000,
    )
    token_audience: str = text(
        "",
        NamedSetting(
            "sasl.oauthbearer.expected.audience",
            "Whom tokens have to be made for, one or more with commas between them; none: anybody.",
            is_dynamic=False,
        ),
    )
    token_issuer: str = text(
        "",
        NamedSetting(
            "sasl.oauthbearer.expected.issuer",
            "Who has to have made them; none: anybody with a key.",
            is_dynamic=False,
        ),
    )
    token_user_claim: str = text(
        "sub",
        NamedSetting(
            "sasl.oauthbearer.sub.claim.name",
            "The claim of a token that names the user.",
            is_dynamic=False,
        ),
    )
    token_clock_skew_s: int = whole(
        30,
        NamedSetting(
            "sasl.oauthbearer.clock.skew.seconds",
            "By how much the clocks of the broker and of who makes tokens may differ.",
            is_dynamic=False,
        ),
        most=3_600,
    )
    unsecured_tokens: bool = truth(
        NamedSetting(
            "sasl.oauthbearer.unsecured.enable",
            "Whether tokens without a signature are taken, which anybody can make for any user:"
            " for tests alone.",
            is_dynamic=False,
        ),
        default=False,
    )

    authorizer: str = choice(
        AUTHORIZER_NONE,
        NamedSetting(
            "authorizer.class.name",
            "Whether what clients do is checked against ACLs (standard). Who calls from inside the"
            " broker's process may do everything.",
            is_dynamic=False,
        ),
        (AUTHORIZER_NONE, AUTHORIZER_STANDARD),
    )
    super_users: str = text(
        "",
        NamedSetting(
            "super.users",
            "Principals that may do everything, such as User:admin;User:CN=ops with semicolons"
            " between them.",
            is_dynamic=False,
        ),
    )
    allow_if_no_acl: bool = truth(
        NamedSetting(
            "allow.everyone.if.no.acl.found",
            "Whether a topic, group or cluster that no ACL is about is everybody's.",
            is_dynamic=False,
        ),
        default=False,
    )

    def __post_init__(self) -> None:
        check_table(self)
        self._check_tokens()
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
                "OAUTHBEARER needs sasl.oauthbearer.jwks.endpoint.url, the keys that tokens are"
                " checked with; or, for tests alone, sasl.oauthbearer.unsecured.enable=true"
            )
