"""Mirror maker flows: the settings of MirrorMaker 2, and the links that do what its flows do.

`mm2.properties` has settings of one cluster (`east.bootstrap.servers`), of one flow
(`east->west.topics`), and of all clusters and flows. Each flow that is enabled becomes one
`streamlog mirror create`.

Rule: each setting is translated, or refused by its name. Only those are passed over that tell
MirrorMaker how to run. No password is printed.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer

from streamlog.cli.terminal import say
from streamlog.errors import ConfigError, some_of
from streamlog.properties import parse_properties

SECRETS: Final = "/etc/streamlog/mirror"
"""The directory of the files that links refer to; brokers need it in `mirror.allowed.paths`."""
ALIKE: Final = frozenset(
    {
        "topics",
        "topics.exclude",
        "groups.exclude",
        "refresh.topics.enabled",
        "sync.topic.configs.enabled",
    }
)
"""Settings that a link has by these names."""
LISTS: Final = frozenset(("topics", "topics.exclude", "groups", "groups.exclude"))
RENAMED: Final = {
    "topics.blacklist": "topics.exclude",
    "groups.blacklist": "groups.exclude",
    "sync.topic.acls.enabled": "sync.acls.enabled",
}
SECONDS: Final = {
    "refresh.topics.interval.seconds": "refresh.topics.interval.ms",
    "sync.group.offsets.interval.seconds": "sync.group.offsets.interval.ms",
}
TOGETHER: Final = frozenset(
    {
        "enabled",
        "groups",
        "sync.group.offsets.enabled",
        "replication.factor",
        "replication.policy.class",
        "replication.policy.separator",
    }
)
"""Settings that count with others, or are the cluster's here."""
PASSED_OVER: Final = re.compile(
    r"""
    tasks\.max(\.enforce)? | offset\.lag\.max | offset-syncs\..* | emit\..* | heartbeats\..*
    | checkpoints\..* | refresh\.groups\..* | sync\.topic\.(configs|acls)\.interval\.seconds
    | consumer\.poll\.timeout\.ms | admin\.timeout\.ms | replication\.policy\.internal\..*
    | name | connector\.class | (source|target)\.cluster\.alias | .*\.plugin\.version
    | (key|value|header)\.converter(\..*)? | errors\..* | config\.action\.reload
    | metrics?\..* | add\.source\.alias\.to\.metrics | listeners | rest\..* | response\..*
    | access\.control\..* | dedicated\.mode\..* | (config|offset|status)\.storage\..*
    | offset\.flush\..* | exactly\.once\..* | group\.id | plugin\..* | scheduled\.rebalance\..*
    | (session|rebalance)\.timeout\.ms | heartbeat\.interval\.ms | topic\.creation\..*
    | (consumer|producer|admin)\.(?!auto\.offset\.reset$).*
    """,
    re.VERBOSE,
)
"""What tells MirrorMaker's workers, topics and clients how to run; none of them runs for a link."""
DEFAULTS: Final = {
    "topic.filter.class": "DefaultTopicFilter",
    "group.filter.class": "DefaultGroupFilter",
    "config.property.filter.class": "DefaultConfigPropertyFilter",
    "consumer.auto.offset.reset": "earliest",
}
"""What a link does; another value can't be translated."""
LOGIN: Final = frozenset(
    {
        "bootstrap.servers",
        "security.protocol",
        "sasl.mechanism",
        "sasl.jaas.config",
        "ssl.truststore.location",
        "ssl.truststore.type",
        "ssl.truststore.password",
        "ssl.keystore.location",
        "ssl.keystore.type",
        "ssl.keystore.password",
        "ssl.key.password",
        "ssl.endpoint.identification.algorithm",
    }
)
"""Settings of a cluster: where it is, and how to log in."""
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
GROUPS_EXCLUDE: Final = "console-consumer-.*,connect-.*,__.*"
"""The groups that MirrorMaker leaves out without a setting; a link copies those of Connect."""
FLOW: Final = re.compile(r"(?P<source>[\w.-]+?)->(?P<target>[\w-]+)\.(?P<name>.+)")
_ESCAPED: Final = re.compile(r"\\(.)")
_JAAS: Final = re.compile(r"""\busername\s*=\s*["']?([^"'\s;]+)""")


class MakerFlow(msgspec.Struct, frozen=True):
    """A flow as the link that does the same for its target."""

    source: str
    target: str
    source_url: str
    target_url: str
    settings: dict[str, str]
    """Those of the link."""
    notes: list[str]
    """What the operator has to know, or to do."""

    @property
    def command(self) -> str:
        """The command that creates the link."""
        left = {**self.settings}
        words = ["streamlog", "mirror", "create", self.source, "--source", self.source_url]
        for name in ("topics", "groups", "prefix"):
            if name in left:
                words += [f"--{name}", left.pop(name)]
        for name, value in left.items():
            words += ["--set", f"{name}={value}"]
        return shlex.join([*words, "--log", self.target_url])


def flows_of(properties: Mapping[str, str]) -> list[MakerFlow]:
    """Return the flows that MirrorMaker's settings enable.

    Raises:
        ConfigError: a setting has no counterpart here; the message names all of them.
    """
    # Java reads a backslash as the first half of an escape.
    settings = {name: _ESCAPED.sub(r"\1", value) for name, value in properties.items()}
    aliases = [each.strip() for each in settings.pop("clusters", "").split(",") if each.strip()]
    if not aliases:
        raise ConfigError("clusters is missing: it names the clusters, such as clusters = a, b")
    scopes = _Scopes(aliases)
    for name, value in settings.items():
        scopes.add(name, value)
    if scopes.unknown:
        raise ConfigError(
            f"{some_of(scopes.unknown)}: a link has no counterpart, see"
            " docs/from-mirrormaker.md. Remove the settings that you don't need"
        )
    found = [
        _flow(source, target, scopes)
        for source, target in scopes.flows
        if scopes.of_flow(source, target).get("enabled") == "true"
    ]
    if not found:
        raise ConfigError("no flow is enabled: MirrorMaker starts those with A->B.enabled = true")
    return found


class _Scopes:
    """The settings of each flow, of each cluster, and of all."""

    def __init__(self, aliases: list[str]) -> None:
        self.aliases = aliases
        self.flows: dict[tuple[str, str], dict[str, str]] = {}
        self.clusters: dict[str, dict[str, str]] = {each: {} for each in aliases}
        self.all: dict[str, str] = {}
        self.unknown: list[str] = []

    def add(self, name: str, value: str) -> None:
        """Take a setting; note it if it is not known."""
        flow = FLOW.fullmatch(name)
        alias = next((each for each in self.aliases if name.startswith(f"{each}.")), None)
        own = name
        if flow is not None:
            ends = flow["source"], flow["target"]
            own, scope = flow["name"], self.flows.setdefault(ends, {})
            is_known = {*ends} <= {*self.aliases} and _is_of_flow(own, value)
        elif alias is not None:
            own, scope = name.removeprefix(f"{alias}."), self.clusters[alias]
            is_known = own in LOGIN or _is_of_flow(own, value)
        else:
            scope, is_known = self.all, name in LOGIN or _is_of_flow(name, value)
        if is_known:
            scope[own] = value
        else:
            self.unknown.append(name)

    def of_flow(self, source: str, target: str) -> dict[str, str]:
        """Return the settings of a flow; its own ones override those of all flows."""
        return self.all | self.flows[source, target]

    def of_cluster(self, alias: str) -> dict[str, str]:
        """Return the settings of a cluster."""
        return {name: self.all[name] for name in LOGIN & self.all.keys()} | self.clusters[alias]


def _is_of_flow(name: str, value: str) -> bool:
    if (default := DEFAULTS.get(name)) is not None:
        return value.rpartition(".")[2] == default
    known = ALIKE | RENAMED.keys() | SECONDS.keys() | TOGETHER
    return name in known or PASSED_OVER.fullmatch(name) is not None


def _flow(source: str, target: str, scopes: _Scopes) -> MakerFlow:
    given = scopes.of_flow(source, target)
    notes: list[str] = []
    settings = {"topics": given.get("topics", ".*")}
    settings |= {name: given[name] for name in sorted(ALIKE & given.keys())}
    settings |= {RENAMED[name]: given[name] for name in sorted(RENAMED.keys() & given.keys())}
    settings |= {
        SECONDS[name]: str(1000 * _number(name, given[name]))
        for name in sorted(SECONDS.keys() & given.keys())
    }
    settings |= _prefix(source, given) | _groups(given)
    settings |= {name: _listed(settings[name]) for name in LISTS & settings.keys()}
    if "sync.topic.acls.enabled" not in given:
        notes.append(
            "MirrorMaker copies ACLs by default: to do so, add --set sync.acls.enabled=true"
        )
    if "replication.factor" in given:
        notes.append(
            f"replication.factor={given['replication.factor']}: set default.replication.factor of"
            f" {target}"
        )
    there, here = scopes.of_cluster(source), scopes.of_cluster(target)
    settings |= dict(_login(source, there, notes.append))
    urls = _url(source, there), _url(target, here)
    return MakerFlow(source, target, *urls, settings, notes)


def _listed(patterns: str) -> str:
    return ",".join(each.strip() for each in patterns.split(","))


def _number(name: str, value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise ConfigError(f"{name}={value} is not a number of seconds") from None


def _prefix(source: str, given: Mapping[str, str]) -> dict[str, str]:
    policy = given.get("replication.policy.class", "DefaultReplicationPolicy").rpartition(".")[2]
    if policy == "IdentityReplicationPolicy":
        return {}
    if policy != "DefaultReplicationPolicy":
        raise ConfigError(
            f"replication.policy.class={policy}: a link names topics by DefaultReplicationPolicy"
            " or IdentityReplicationPolicy"
        )
    return {"prefix": source + given.get("replication.policy.separator", ".")}


def _groups(given: Mapping[str, str]) -> dict[str, str]:
    """Return the groups whose positions are copied; MirrorMaker copies none unless it is asked."""
    if given.get("sync.group.offsets.enabled") != "true":
        return {}
    excluded = given.get("groups.exclude", given.get("groups.blacklist", GROUPS_EXCLUDE))
    return {"groups": given.get("groups", ".*"), "groups.exclude": excluded}


def _url(alias: str, cluster: Mapping[str, str]) -> str:
    if not cluster.get("bootstrap.servers"):
        raise ConfigError(f"{alias}.bootstrap.servers is missing")
    is_tls = cluster.get("security.protocol", "").endswith("SSL")
    servers = ",".join(each.strip() for each in cluster["bootstrap.servers"].split(","))
    return f"kafka{'+ssl' if is_tls else ''}://{servers}"


def _login(
    alias: str, cluster: Mapping[str, str], note: Callable[[str], None]
) -> Iterator[tuple[str, str]]:
    """Yield the settings of the login at a source; raise ConfigError if a link can't log in so."""
    protocol = cluster.get("security.protocol", "PLAINTEXT")
    if protocol.startswith("SASL"):
        yield "security.protocol", protocol
        mechanism = cluster.get("sasl.mechanism", "GSSAPI")
        user = _JAAS.search(cluster.get("sasl.jaas.config", ""))
        if mechanism not in MECHANISMS or user is None:
            raise ConfigError(
                f"{alias}: a link logs in by {', '.join(MECHANISMS)} with the username of"
                f" sasl.jaas.config; sasl.mechanism is {mechanism}"
            )
        yield from (("sasl.mechanism", mechanism), ("sasl.username", user[1]))
        yield "sasl.password", f"${{file:{SECRETS}/{alias}-password}}"
        note(f"write the password of {user[1]} to {SECRETS}/{alias}-password on each broker")
    if protocol.endswith("SSL"):
        yield from _files(alias, cluster, note)


def _files(
    alias: str, cluster: Mapping[str, str], note: Callable[[str], None]
) -> Iterator[tuple[str, str]]:
    stores = {
        "truststore": {"ssl.ca.location": "ca"},
        "keystore": {"ssl.certificate.location": "certificate", "ssl.key.location": "key"},
    }
    for store, names in stores.items():
        if not (location := cluster.get(f"ssl.{store}.location")):
            continue
        files = {name: f"{SECRETS}/{alias}-{what}.pem" for name, what in names.items()}
        yield from files.items()
        note(f"write {location} as PEM to {' and '.join(files.values())} on each broker")
    algorithm = cluster.get("ssl.endpoint.identification.algorithm")
    if algorithm is not None:
        yield "ssl.endpoint.identification.algorithm", algorithm or "none"


def from_mirrormaker(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="MirrorMaker's settings, mm2.properties.")
    ],
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print the commands that create links for the flows of MirrorMaker 2; create nothing."""
    try:
        content = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} can't be read: {error}") from None
    flows = flows_of(parse_properties(content, str(file)))
    if as_json:
        say(json.dumps([msgspec.to_builtins(each) | {"command": each.command} for each in flows]))
        return
    for each in flows:
        for note in each.notes:
            say(f"# {each.source}->{each.target}: {note}")
        say(each.command)
