"""LinkConfig: the table of settings of a link to another cluster.

The names are Kafka's where Kafka has the setting: those of clients for the connection and the
fetches, those of MirrorMaker 2 for what is mirrored. A link keeps the texts that were given, and
each broker reads them as this table. Rules of the file:

- A secret is a reference (`${file:PATH}` or `${env:NAME}`), which each broker resolves for itself:
  the metadata log, its snapshots and the descriptions of a link never contain one.
- A file or variable that a link names has to be one that `mirror.allowed.paths` or
  `mirror.env.allowlist.pattern` allows. `check_references` looks at the texts only, for the
  controller; `mirroring/link_login` follows the links of the file system, too.
- As in `config/broker`, a setting without an effect is not declared.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from streamlog.broker.config.security import MIRROR_PATHS, MIRROR_VARIABLES, SecurityConfig
from streamlog.broker.config.settings import (
    INT_MAX,
    Form,
    NamedSetting,
    Setting,
    boolean,
    check_table,
    choice,
    declared_settings,
    integer,
    items,
    password,
    replace_settings,
    text,
    unknown_setting,
)
from streamlog.errors import ConfigError

DAY_MS: Final = 24 * 60 * 60 * 1000
FETCH_BYTES_MIN: Final = 1024
"""The least bytes of a fetch."""
LINK_SECURITY: Final = ("security.", "sasl.", "ssl.")
"""How the names of settings begin that say how brokers log in at the source."""
PREFIX_MAX: Final = 200
"""Characters of a prefix; a topic's name has at most 249."""
MIRRORED_PATTERNS: Final = Form(".*", "regular expressions, separated by commas")
_ADDRESSES: Final = Form(
    r"[^,\s]+:[0-9]{1,5}(,[^,\s]+:[0-9]{1,5})*|", "HOST:PORT of brokers, separated by commas"
)
_MECHANISMS: Final = Form(
    "PLAIN|SCRAM-SHA-256|SCRAM-SHA-512|OAUTHBEARER|",
    "PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER",
)
_APP_IDS: Final = Form(r"[a-zA-Z0-9._-]+(,[a-zA-Z0-9._-]+)*|", "ids of apps, separated by commas")
_NAME_BEGINNING: Final = Form(
    rf"[a-zA-Z0-9._-]{{0,{PREFIX_MAX}}}|",
    f"at most {PREFIX_MAX} letters, digits, dots, underscores and hyphens",
)
REFERENCE: Final = re.compile(r"\$\{(env|file):([^}]*)\}")
"""The pattern of `streamlog.properties`, which resolves them and so is not for pure modules."""
SECRET: Final = re.compile(rf"(?:{REFERENCE.pattern})+")
"""Text beside a reference would be a part of the secret that everyone can read."""
LINK_FILES: Final = ("ssl.ca.location", "ssl.certificate.location", "ssl.key.location")
"""The settings whose values are paths of files."""
_ON_EACH_BROKER: Final = "It is read on each broker of this cluster, below mirror.allowed.paths."


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkConfig:
    """What a link leads to, and what it mirrors.

    Raises:
        ConfigError: a value is out of range or malformed.
    """

    bootstrap_servers: str = items(
        "",
        NamedSetting(
            "bootstrap.servers",
            "Brokers of the source that are asked first, several of them so that one may be down."
            " Required.",
        ),
        _ADDRESSES,
    )
    security_protocol: str = choice(
        "PLAINTEXT",
        NamedSetting("security.protocol", "How brokers connect to the source."),
        ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
    )
    ca_file: str = text(
        "",
        NamedSetting(
            "ssl.ca.location",
            "PEM file with the authorities of the source's certificates; empty: those of the"
            f" machine. {_ON_EACH_BROKER}",
        ),
    )
    certificate_file: str = text(
        "",
        NamedSetting(
            "ssl.certificate.location",
            f"PEM file with the certificate that is shown to the source. {_ON_EACH_BROKER}",
        ),
    )
    key_file: str = text(
        "",
        NamedSetting(
            "ssl.key.location",
            "PEM file with the private key of that certificate; empty: the key is in the same file."
            f" {_ON_EACH_BROKER}",
        ),
    )
    key_password: str = password(
        NamedSetting(
            "ssl.key.password", "Password of the private key, as ${file:PATH} or ${env:NAME}."
        )
    )
    checks_name: str = choice(
        "https",
        NamedSetting(
            "ssl.endpoint.identification.algorithm",
            "https: a certificate of the source has to be for the host name of the connection.",
        ),
        ("https", "none"),
    )
    mechanism: str = items(
        "",
        NamedSetting("sasl.mechanism", "How brokers log in at the source."),
        _MECHANISMS,
    )
    user: str = text(
        "",
        NamedSetting(
            "sasl.username",
            "The user there. On the source's topics it needs READ and DESCRIBE_CONFIGS, and"
            " DESCRIBE on groups that are copied.",
        ),
    )
    login_password: str = password(
        NamedSetting("sasl.password", "The user's password, as ${file:PATH} or ${env:NAME}.")
    )
    token: str = password(
        NamedSetting(
            "sasl.oauthbearer.token", "The token for OAUTHBEARER, as ${file:PATH} or ${env:NAME}."
        )
    )
    # Empty, not `.*` as in MirrorMaker 2: mirrors have the names of their topics here, so a link
    # that copies all may collide with topics of this cluster.
    topics: str = items(
        "",
        NamedSetting(
            "topics",
            "Topics of the source that are mirrored: each pattern has to match a whole name. Topics"
            " whose names begin with __ never are. A mirror continues when no pattern names its"
            " topic any more.",
        ),
        MIRRORED_PATTERNS,
    )
    apps: str = items(
        "",
        NamedSetting(
            "apps",
            "Apps of the source that are mirrored: the topics whose names begin with the id of the"
            " app and a hyphen, the topics in which the group of that id has committed offsets, and"
            " these offsets. What an app only writes has to be named by topics. Excludes prefix."
            " Not a setting of Kafka.",
        ),
        _APP_IDS,
    )
    topics_exclude: str = items(
        r"mm2.*\.internal,.*\.replica",
        NamedSetting("topics.exclude", "Topics that are not mirrored although topics names them."),
        MIRRORED_PATTERNS,
    )
    prefix: str = items(
        "",
        NamedSetting(
            "prefix",
            "Written before the name of each topic: with `eu.`, orders of the source is eu.orders"
            " here. It counts for mirrors that are created from then on.",
        ),
        _NAME_BEGINNING,
    )
    refresh_topics_enabled: bool = boolean(
        NamedSetting(
            "refresh.topics.enabled",
            "Whether topics of the source become mirrors as soon as the patterns name them."
            " Switched off, no mirrors are added, and those that exist continue.",
        ),
        default=True,
    )
    refresh_topics_interval_ms: int = integer(
        5_000,
        NamedSetting(
            "refresh.topics.interval.ms",
            "The time between two looks at the source's topics, partitions and settings."
            " (MirrorMaker 2: refresh.topics.interval.seconds.)",
            "ms",
        ),
        minimum=10,
        maximum=DAY_MS,
    )
    sync_topic_configs_enabled: bool = boolean(
        NamedSetting(
            "sync.topic.configs.enabled",
            "Whether mirrors get the settings that their source topics have themselves. Without it,"
            " they are copied once, when a mirror is created.",
        ),
        default=True,
    )
    # Per broker, as Kafka's throttles of replication are: brokers don't tell each other what they
    # have fetched.
    groups: str = items(
        "",
        NamedSetting(
            "groups",
            "Consumer groups of the source whose committed offsets are copied: each pattern has to"
            " match a whole name. Offsets are copied in topics that the link mirrors, while the"
            " group has no members in this cluster.",
        ),
        MIRRORED_PATTERNS,
    )
    groups_exclude: str = items(
        "console-consumer-.*,__.*",
        NamedSetting("groups.exclude", "Groups that are not copied although groups names them."),
        MIRRORED_PATTERNS,
    )
    sync_group_offsets_interval_ms: int = integer(
        1_000,
        NamedSetting(
            "sync.group.offsets.interval.ms",
            "The time between two looks at the source's groups. (MirrorMaker 2:"
            " sync.group.offsets.interval.seconds.)",
            "ms",
        ),
        minimum=10,
        maximum=DAY_MS,
    )
    sync_group_deletions_enabled: bool = boolean(
        NamedSetting(
            "sync.group.deletions.enabled",
            "Whether offsets and groups that are deleted at the source, or expire there, are"
            " deleted here, too. Only copies are. Not a setting of Kafka.",
        ),
        default=False,
    )
    # Off, unlike in MirrorMaker 2: the users here need not be those of the source, even if their
    # names are equal.
    sync_acls_enabled: bool = boolean(
        NamedSetting(
            "sync.acls.enabled",
            "Whether the source's ACLs are copied for the topics that the link mirrors and for the"
            " groups that it copies. The link's user needs DESCRIBE on the source's cluster."
            " (MirrorMaker 2: sync.topic.acls.enabled, for topics only.)",
        ),
        default=False,
    )
    bytes_per_second: int = integer(
        0,
        NamedSetting(
            "bytes.per.second",
            "How much each broker of this cluster fetches over the link at most; 0: without a"
            " limit. Not a setting of Kafka.",
            "bytes",
        ),
    )
    # The fetches are small next to a consumer's 50 MiB: a broker appends what an answer contains
    # before it serves its clients again.
    fetch_max_bytes: int = integer(
        10 * 1024 * 1024,
        NamedSetting(
            "fetch.max.bytes",
            "The most that a broker fetches at once from one of the source's.",
            "bytes",
        ),
        minimum=FETCH_BYTES_MIN,
        maximum=1024 * 1024 * 1024,
    )
    max_partition_fetch_bytes: int = integer(
        1024 * 1024,
        NamedSetting(
            "max.partition.fetch.bytes", "The most that a fetch takes from a partition.", "bytes"
        ),
        minimum=FETCH_BYTES_MIN,
        maximum=1024 * 1024 * 1024,
    )
    fetch_max_wait_ms: int = integer(
        500,
        NamedSetting(
            "fetch.max.wait.ms",
            "How long the source holds a fetch while it has no new records. New records end the"
            " wait, so that it does not delay them.",
            "ms",
        ),
        maximum=60_000,
    )
    request_timeout_ms: int = integer(
        30_000,
        NamedSetting(
            "request.timeout.ms",
            "A broker of the source that has not answered for this long is connected to again; more"
            " than fetch.max.wait.ms.",
            "ms",
        ),
        minimum=100,
        maximum=INT_MAX,
    )

    def __post_init__(self) -> None:
        check_table(self)
        patterns_of("topics", self.topics)
        patterns_of("topics.exclude", self.topics_exclude)
        patterns_of("groups", self.groups)
        patterns_of("groups.exclude", self.groups_exclude)
        if self.apps and self.prefix:
            raise ConfigError(
                f"prefix={self.prefix!r}: an app finds its topics by their names, so the topics of"
                f" apps={self.apps} have to keep them: leave prefix out, or use another link"
            )
        if self.request_timeout_ms <= self.fetch_max_wait_ms:
            raise ConfigError(
                f"request.timeout.ms={self.request_timeout_ms}: must be more than"
                f" fetch.max.wait.ms={self.fetch_max_wait_ms}, or every quiet fetch fails"
            )

    @classmethod
    def of(cls, settings: Mapping[str, str]) -> LinkConfig:
        """Return the table of a link's settings, given as texts.

        Raises:
            ConfigError: a name is unknown, a value malformed or out of range, a secret is written
                out, or bootstrap.servers is missing.
        """
        for name, value in settings.items():
            if name not in LINK_SETTINGS:
                raise unknown_setting("link", name, LINK_SETTINGS)
            if LINK_SETTINGS[name].is_secret and not SECRET.fullmatch(value):
                raise ConfigError(
                    f"{name} is a secret, which the metadata log would keep for everyone to read:"
                    " write ${file:PATH} or ${env:NAME} without other text, and put it there on"
                    " each broker"
                )
        config = replace_settings(cls(), settings)
        if not config.bootstrap_servers:
            raise ConfigError(
                "bootstrap.servers is missing: give HOST:PORT of brokers of the source"
            )
        return config


def apps_of(config: LinkConfig) -> tuple[str, ...]:
    """Return the ids of the apps that a link mirrors."""
    return tuple(filter(None, config.apps.split(",")))


def patterns_of(name: str, patterns: str) -> tuple[re.Pattern[str], ...]:
    """Return the patterns in the value of a setting.

    Args:
        name: the setting, for messages.
        patterns: regular expressions of Python, with commas between them.

    Raises:
        ConfigError: one is no regular expression.
    """
    found = []
    for each in filter(None, (part.strip() for part in patterns.split(","))):
        # A comma separates, as in Kafka's lists. Python takes the first half of `a{1,2}` for the
        # text "a{1", so that the pattern would match nothing without a word.
        if each.count("{") != each.count("}"):
            raise ConfigError(
                f"{name}={patterns!r}: a pattern can't contain a comma, which separates patterns"
            )
        try:
            found.append(re.compile(each))
        except re.error as error:
            raise ConfigError(f"{name}={each!r} is no regular expression: {error}") from error
    return tuple(found)


def check_references(settings: Mapping[str, str], security: SecurityConfig) -> None:
    """Check that a node lets links refer to the files and variables in these settings.

    Only the texts count, not what is on a disk: each broker decides again for its own files.

    Raises:
        ConfigError: a reference is not allowed; the message names the setting that allows it.
    """
    for name, value in settings.items():
        if not name.startswith(LINK_SECURITY):
            continue
        if name in LINK_FILES and value:
            _check_path(name, value, security)
        for kind, target in REFERENCE.findall(value):
            if kind == "file":
                _check_path(name, target, security)
            # Without a pattern, `${env:}` would match it.
            elif not target or not re.fullmatch(security.mirror_variables, target):
                raise ConfigError(
                    f"{name} refers to the environment variable {target}, which"
                    f" {MIRROR_VARIABLES}={security.mirror_variables!r} of this node does not"
                    f" allow: set {MIRROR_VARIABLES} on each node to a regular expression that"
                    " matches it"
                )


def _check_path(name: str, path: str, security: SecurityConfig) -> None:
    allowed = security.mirror_paths.split(",") if security.mirror_paths else []
    # What is written counts, so `..` is never allowed: after a link to a directory, it leads to the
    # parent of what the link leads to.
    is_plain = "\0" not in path and ".." not in path.split("/")
    whole = posixpath.normpath(path)
    for each in map(posixpath.normpath, allowed):
        if is_plain and whole.startswith(each.rstrip("/") + "/"):
            return
    raise ConfigError(refused_path(name, path, security))


def refused_path(name: str, path: str, security: SecurityConfig) -> str:
    """Return the message that a setting of a link names a file that it may not name."""
    return (
        f"{name} refers to the file {path!r}, which is below no directory of"
        f" {MIRROR_PATHS}={security.mirror_paths!r} of this node: move it there, or add its"
        f" directory to {MIRROR_PATHS} on each node; write absolute paths without `..`"
    )


LINK_SETTINGS: Mapping[str, Setting] = {
    name: each.setting for name, each in declared_settings(LinkConfig).items()
}
"""The settings of a link by name."""
