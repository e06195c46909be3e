"""`streamlog mirror`: links to other clusters, and the topics that they mirror.

All commands ask the cluster that has the mirrors (`--log`). `create` asks the source, too, before
anything is made: a wrong address, login or pattern is an error of the command, and not a link that
copies nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any

import msgspec
import typer
from rich.table import Table as Grid

from streamlog.broker.config.link import LINK_SECURITY, LinkConfig
from streamlog.broker.config.security import SecurityConfig
from streamlog.broker.mirroring.link_plan import TOPOLOGY, LinkRules, own_topics
from streamlog.broker.mirroring.link_runner import rules_of
from streamlog.cli.broker_command import broker_config
from streamlog.cli.operate import mirror_to_kafka
from streamlog.cli.operate.connectors_command import DEFAULT_CONNECT
from streamlog.cli.operate.mirror_maker_flows import from_mirrormaker
from streamlog.cli.operate.mirror_promotion import (
    ConfigOption,
    JsonOption,
    LinkArgument,
    fail_back,
    lag_text,
    no_link,
    number_text,
    open_source,
    promote,
    time_text,
    unseal,
)
from streamlog.cli.output.progress_bar import Bar, progress_bar
from streamlog.cli.session import LogOption, Session, ask, complete_links, run, with_log
from streamlog.cli.terminal import out, parse_name_values, say
from streamlog.client.admin import (
    Admin,
    LinkDescription,
    MirrorDescription,
    MirrorStatus,
    SealDescription,
)
from streamlog.client.admin.log_comparison import ComparedRange
from streamlog.clock import SystemClock
from streamlog.errors import ConnectionLost, RequestTimedOut, UsageError, quantity, some_of
from streamlog.log import Log
from streamlog.properties import resolve
from streamlog.protocol.schema import id_text
from streamlog.record import TopicPartition
from streamlog.replace import replace
from streamlog.transport.client_connection import TcpTransport
from streamlog.transport.security import Security
from streamlog.worker.topics.app_topics import read_whole_topic
from streamlog.worker.topics.contract_log import decode_contract
from streamlog.worker.topics.version_log import version_topic

KAFKA, KAFKA_TLS = "kafka://", "kafka+ssl://"
CONNECT_MS = 10_000
CLIENT_ID = "streamlog-cli"
DEFAULT_PORT = 9092
EXIT_DIFFERENT = 1
PROGRESS_MS = 5_000
POLICY = "cleanup.policy"
BOOTSTRAP, PROTOCOL = "bootstrap.servers", "security.protocol"

LinkOption = Annotated[
    str | None,
    typer.Option(
        "--link", metavar="NAME", help="All mirrors of this link.", autocompletion=complete_links
    ),
]
TopicArguments = Annotated[
    list[str] | None, typer.Argument(metavar="[TOPIC]...", help="Mirror topics.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="NAME=VALUE", help="A setting of the link; docs/configuration.md#links."
    ),
]

SourceOption = Annotated[
    str | None,
    typer.Option(
        "--source",
        metavar="URL",
        help="The source, kafka://HOST:PORT[,HOST:PORT...], or kafka+ssl:// with TLS.",
    ),
]
ToOption = Annotated[
    str | None,
    typer.Option(
        "--to",
        metavar="URL",
        help="Mirror from this cluster to Apache Kafka instead, by a Connect service.",
    ),
]
ConnectOption = Annotated[
    str | None,
    typer.Option(
        "--connect",
        metavar="URL",
        help="The Connect service that runs mirrors to Apache Kafka, and the command is of those."
        f" Default of create --to: {DEFAULT_CONNECT}.",
    ),
]
PatternOption = Annotated[
    str,
    typer.Option(
        "--topics", metavar="PATTERN", help="Regular expressions, with commas between them."
    ),
]
GroupsOption = Annotated[
    str | None,
    typer.Option(
        "--groups",
        metavar="PATTERN",
        help="Groups whose committed offsets are copied, too. Default: none.",
    ),
]
AppOption = Annotated[
    str | None,
    typer.Option(
        "--app",
        metavar="ID",
        help="An app of the source: what it owns, reads and writes, and its positions.",
    ),
]
PrefixOption = Annotated[
    str, typer.Option("--prefix", metavar="P", help="Written before the names of topics here.")
]

mirror = typer.Typer(help="Topics that are copied from other clusters.", no_args_is_help=True)
mirror.command("promote")(promote)
mirror.command("fail-back")(fail_back)
mirror.command("unseal")(unseal)
mirror.command("from-mirrormaker")(from_mirrormaker)


class SourceLook(msgspec.Struct, frozen=True):
    """What `create` has found at the source."""

    cluster_id: str
    topics: list[str]
    """All but internal ones."""
    app: AppLook | None = None


class AppLook(msgspec.Struct, frozen=True):
    """What the log tells of an app: by the names of topics, its contract and its positions."""

    id: str
    owned: list[str]
    read: list[str]
    written: list[str]
    missing: list[str]
    """Topics of its contract that do not exist."""


@mirror.command("create")
def create_link(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The link's name.")],
    *,
    source: SourceOption = None,
    to: ToOption = None,
    topics: PatternOption = "",
    app: AppOption = None,
    groups: GroupsOption = None,
    prefix: PrefixOption = "",
    settings: SetOption = None,
    connect: ConnectOption = None,
    as_json: JsonOption = False,
    log: LogOption = None,
) -> None:
    """Link this cluster to a source, and mirror the topics that match, or an app."""
    if not topics and app is None:
        raise UsageError("nothing to mirror: give --topics PATTERN, --app ID, or both")
    given = parse_name_values("--set", settings or ())
    if to is not None:
        if prefix or app:
            raise UsageError(
                "--to takes no --prefix and no --app: say --set source.cluster.alias=NAME, and"
                " --topics"
            )
        settings_there = link_settings(to, given)
        found = run(look_at(to, settings_there, revealed=mirror_to_kafka.revealed))
        target = found.cluster_id, settings_there
        wanted_there = mirror_to_kafka.WantedMirror(name, *target, topics, groups)
        mirror_to_kafka.create(context.obj, source or log, wanted_there, connect, as_json=as_json)
        return
    if source is None:
        raise UsageError("name the source by --source URL, or by --to URL where records go")
    wanted = link_settings(source, given | {"topics": topics, "prefix": prefix, "apps": app or ""})
    if groups is not None:
        wanted["groups"] = groups
    LinkConfig.of(wanted)
    look = run(look_at(source, wanted, app))
    rules = _rules_with_app(wanted, look.app)
    session: Session = context.obj
    # What the controller refuses comes first: a link to this cluster itself matches no topic, too.
    create = partial(_create, name=name, settings=wanted, source=look.cluster_id)
    there = ask(session, log, partial(create, only_checks=True))
    names = _names_here(rules, look, topics)
    ask(session, log, partial(create, only_checks=False))
    _show_created(name, look, names, there, as_json=as_json)
    if not as_json:
        where = "" if log is None else f" --log {log}"
        say(f"how far they are: streamlog mirror describe {name}{where}")


def _rules_with_app(wanted: dict[str, str], app: AppLook | None) -> LinkRules:
    """Return what a link mirrors; add topics of an app to its settings."""
    if app is None:
        return rules_of(LinkConfig.of(wanted))
    # Brokers find by themselves what the app will own and read. What it writes is in its contract
    # only, and what it reads may have no position yet.
    named = map(re.escape, (*app.read, *app.written))
    wanted["topics"] = ",".join(filter(None, [wanted.get("topics", ""), *named]))
    return replace(rules_of(LinkConfig.of(wanted)), of_apps=app.owned)


def _names_here(rules: LinkRules, look: SourceLook, topics: str) -> list[str]:
    """Return the names of mirrors, by the rules of brokers, so that they are what will be there."""
    names = [found for each in look.topics if (found := rules.name_of(each)) is not None]
    if not names:
        known = some_of(look.topics) if look.topics else "none"
        raise UsageError(
            f"no topic of the source matches {topics!r}; its topics: {known}. A pattern has to"
            " match the whole name"
        )
    return names


def _show_created(
    name: str, look: SourceLook, names: Sequence[str], there: set[str], *, as_json: bool
) -> None:
    """Print what a new link mirrors; `there` are the topics that this cluster had before."""
    taken = sorted(there & {*names})
    mirrored = [each for each in names if each not in there]
    if as_json:
        shown = {"link": name, "source": look.cluster_id, "topics": mirrored, "taken": taken}
        if look.app is not None:
            shown["app"] = msgspec.to_builtins(look.app)
        say(json.dumps(shown))
        return
    say(
        f"link {name} mirrors {quantity(len(mirrored), 'topic')} of cluster {look.cluster_id}"
        + (f": {some_of(mirrored)}" if mirrored else "")
    )
    if look.app is not None:
        _show_app(look.app)
    if taken:
        say(
            f"topics that this cluster has already are not mirrored: {some_of(taken)}. Let them"
            f" follow the source by `streamlog mirror fail-back {name}`, or create a link with"
            " --prefix",
            err=True,
        )


def _show_app(look: AppLook) -> None:
    """Print what of an app is mirrored."""
    say(f"of app {look.id}: the positions of its group, and what it")
    for what, names in (("owns", look.owned), ("reads", look.read), ("writes", look.written)):
        say(f"  {what}: {', '.join(names) or 'nothing'}")
    if look.missing:
        say(f"topics of its contract that do not exist yet: {', '.join(look.missing)}", err=True)


async def _create(
    admin: Admin, *, name: str, settings: Mapping[str, str], source: str, only_checks: bool
) -> set[str]:
    """Create a link, or check that it can be; return the topics of this cluster."""
    await admin.create_link(name, settings, source_cluster_id=source, validate_only=only_checks)
    return {each.name for each in await admin.list_topics()}


def link_settings(source: str, given: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of a link to a URL; those that are given count.

    Raises:
        UsageError: the URL is not that of a cluster.
    """
    scheme = next((each for each in (KAFKA_TLS, KAFKA) if source.startswith(each)), None)
    if scheme is None or source == scheme:
        raise UsageError(f"--source {source!r}: write kafka://HOST:PORT, or kafka+ssl://HOST:PORT")
    addresses = [each.strip() for each in source.removeprefix(scheme).rstrip("/").split(",")]
    # The brokers get addresses with ports: a link has no default, as it may lead anywhere.
    with_ports = (each if ":" in each else f"{each}:{DEFAULT_PORT}" for each in addresses)
    found = {BOOTSTRAP: ",".join(with_ports)}
    # The scheme alone has to encrypt, as for a client: nothing is sent in clear by an omission.
    if scheme == KAFKA_TLS and PROTOCOL not in given:
        found[PROTOCOL] = "SASL_SSL" if "sasl.mechanism" in given else "SSL"
    return found | {name: value for name, value in given.items() if value}


async def look_at(
    source: str,
    settings: Mapping[str, str],
    app: str | None = None,
    *,
    revealed: Callable[[str, str], str] = resolve,
) -> SourceLook:
    """Connect to a source as its link would, and return its topics, and what is an app's.

    Args:
        source: its URL.
        settings: those of the link.
        app: the app.
        revealed: returns the value of a setting, by its name, without references to secrets.

    Raises:
        UsageError: there is no such app.
        ConfigError: a secret can't be read here, or the settings contradict each other.
        ConnectionLost: none of the addresses can be reached.
        AuthenticationFailed: the source refuses the login, or this side its certificate.
    """
    login = {
        name: revealed(name, value)
        for name, value in settings.items()
        if name.startswith(LINK_SECURITY)
    }
    security = Security.of(login).loaded()
    # Before the client, which tries for a minute, so that a wrong address is reported at once.
    await _connect_once(settings[BOOTSTRAP], security)
    async with Log.open(source, security=security) as log:
        topics = [each.name for each in await log.admin().list_topics()]
        found = None if app is None else await _look_at_app(log, app, topics)
        return SourceLook(log.cluster_id, topics, found)


async def _look_at_app(log: Log, app: str, topics: Sequence[str]) -> AppLook:
    owned = own_topics([app], topics)
    positions = await log.admin().group_offsets(app)
    if not owned and not positions:
        apps = [each.removesuffix(TOPOLOGY) for each in topics if each.endswith(TOPOLOGY)]
        raise UsageError(
            f"there is no app {app!r} at the source: no topic's name begins with {app}-, and no"
            f" group {app} has committed; its apps: {some_of(apps) if apps else 'none'}"
        )
    # An app without a topology, such as one of another stream processor, has no contract either.
    contract = decode_contract(app, await read_whole_topic(log, version_topic(app)))
    read = {each.topic for each in positions}
    written: set[str] = set()
    if contract is not None:
        read |= {*contract.read}
        written |= {*contract.written}
    there = {*topics}
    return AppLook(
        id=app,
        owned=sorted(owned),
        read=sorted((read - owned) & there),
        written=sorted((written - owned - read) & there),
        missing=sorted((read | written) - there),
    )


async def _connect_once(addresses: str, security: Security) -> None:
    """Raise ConnectionLost unless one of the addresses answers."""
    reasons = []
    for each in addresses.split(","):
        host, _, port = each.rpartition(":")
        try:
            transport = await TcpTransport.connect(
                host.strip("[]"),
                int(port),
                client_id=CLIENT_ID,
                timeout_ms=CONNECT_MS,
                security=security,
            )
        except (ConnectionLost, RequestTimedOut) as error:
            reasons.append(str(error))
        else:
            await transport.close()
            return
    raise ConnectionLost(f"no broker can be reached, nothing was created: {'; '.join(reasons)}")


@mirror.command("list")
def list_links(
    context: typer.Context,
    *,
    connect: ConnectOption = None,
    as_json: JsonOption = False,
    log: LogOption = None,
) -> None:
    """Print all links."""
    session: Session = context.obj
    if connect is not None:
        mirror_to_kafka.show_list(session, log, connect, as_json=as_json)
        return
    found = ask(session, log, lambda admin: admin.describe_mirrors())
    if as_json:
        say(json.dumps([_link_json(each) for each in found.links]))
        return
    grid = Grid("link", "source cluster", "addresses", "topics", "mirrors", "lag", "trouble")
    for each in found.links:
        own = [one for one in found.mirrors if one.link == each.name]
        grid.add_row(
            each.name,
            each.source_cluster_id,
            each.settings.get(BOOTSTRAP, ""),
            each.settings.get("topics", ""),
            str(each.mirrors),
            lag_text(max((one.lag_ms or 0 for one in own), default=0)),
            next(iter(each.troubles.values()), ""),
        )
    out().print(grid)
    _show_seals(found.seals)


@mirror.command("describe")
def describe_link(
    context: typer.Context,
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="One link.", autocompletion=complete_links),
    ] = None,
    *,
    connect: ConnectOption = None,
    as_json: JsonOption = False,
    log: LogOption = None,
) -> None:
    """Print links with their settings, and the state of each mirror topic."""
    session: Session = context.obj
    if connect is not None:
        mirror_to_kafka.show(session, log, connect, name, as_json=as_json)
        return
    found = ask(session, log, lambda admin: admin.describe_mirrors())
    links = [each for each in found.links if name in (None, each.name)]
    if name is not None and not links:
        raise UsageError(no_link(name, found))
    mirrors = [each for each in found.mirrors if name in (None, each.link)]
    if as_json:
        say(
            json.dumps(
                {
                    "cluster_id": found.cluster_id,
                    "links": [_link_json(each) for each in links],
                    "mirrors": [_mirror_json(each) for each in mirrors],
                    "seals": [msgspec.to_builtins(each) for each in found.seals],
                    "silent": {str(node): why for node, why in found.silent.items()},
                }
            )
        )
        return
    for each in links:
        _show_link(each)
    out().print(_mirrors_grid(mirrors))
    _show_seals(found.seals)
    # To standard error, so that the table stays one for programs that read it.
    for node, why in found.silent.items():
        say(f"broker {node} does not answer, so that what it leads is missing: {why}", err=True)


def _show_link(link: LinkDescription) -> None:
    say(f"link {link.name} to cluster {link.source_cluster_id}")
    for name, value in sorted(link.settings.items()):
        say(f"  {name}={value}")
    for node, trouble in link.troubles.items():
        say(f"  broker {node}: {trouble}")
    for node, notices in link.notices.items():
        for notice in notices:
            say(f"  broker {node}: {notice}")


def _show_seals(seals: Sequence[SealDescription]) -> None:
    """Print the topics that other clusters take over, if there are any."""
    if not seals:
        return
    grid = Grid("topic", "state", "since", "taken over by", "promotion", "sealed partitions")
    for each in seals:
        grid.add_row(
            each.topic,
            each.status.value,
            time_text(each.since_ms),
            each.target_cluster_id,
            str(each.attempt),
            f"{each.sealed_partitions} of {each.num_partitions}",
        )
    out().print(grid)


def _mirrors_grid(mirrors: Iterable[MirrorDescription]) -> Grid:
    grid = Grid("topic", "source topic", "state", "since", "records", "bytes", "seconds", "reason")
    for each in mirrors:
        is_promoted = each.status is MirrorStatus.PROMOTED
        grid.add_row(
            each.name,
            each.source_topic,
            each.status.value,
            time_text(each.since_ms),
            *(
                ("", "", "")
                if is_promoted
                else (
                    number_text(each.lag_records),
                    number_text(each.lag_bytes),
                    "?" if each.lag_ms is None else lag_text(each.lag_ms),
                )
            ),
            each.reason,
        )
    return grid


@mirror.command("alter")
def alter_link(
    context: typer.Context,
    name: LinkArgument,
    *,
    settings: SetOption = None,
    unset: Annotated[
        list[str] | None,
        typer.Option("--unset", metavar="NAME", help="A setting that returns to its default."),
    ] = None,
    connect: ConnectOption = None,
    as_json: JsonOption = False,
    log: LogOption = None,
) -> None:
    """Change settings of a link, all of them or none."""
    changes: dict[str, str | None] = {**parse_name_values("--set", settings or ())}
    changes |= dict.fromkeys(unset or ())
    if not changes:
        raise UsageError("nothing to change: give --set NAME=VALUE or --unset NAME")
    if connect is not None:
        mirror_to_kafka.alter(connect, name, changes, as_json=as_json)
        return
    session: Session = context.obj
    ask(session, log, lambda admin: admin.alter_link(name, changes))
    say(
        json.dumps({"altered": name, "settings": changes}) if as_json else f"link {name} is altered"
    )


@mirror.command("delete")
def delete_link(
    context: typer.Context,
    name: LinkArgument,
    *,
    connect: ConnectOption = None,
    as_json: JsonOption = False,
    log: LogOption = None,
) -> None:
    """Delete a link that mirrors no topic any more."""
    session: Session = context.obj
    if connect is not None:
        mirror_to_kafka.change(connect, name, "delete", as_json=as_json)
        return
    ask(session, log, lambda admin: admin.delete_link(name))
    say(json.dumps({"deleted": name}) if as_json else f"link {name} is deleted")


@mirror.command("pause")
def pause(
    context: typer.Context,
    topics: TopicArguments = None,
    *,
    link: LinkOption = None,
    connect: ConnectOption = None,
    as_json: JsonOption = False,
    log: LogOption = None,
) -> None:
    """Let mirror topics copy nothing until they are resumed."""
    session: Session = context.obj
    if connect is not None:
        named = mirror_to_kafka.mirror_named(topics, link)
        mirror_to_kafka.change(connect, named, "pause", as_json=as_json)
        return
    states = {MirrorStatus.PAUSED, MirrorStatus.STOPPED, MirrorStatus.PROMOTED}

    async def question(admin: Admin) -> list[str]:
        wanted = await _chosen(admin, topics or [], link, without=states)
        if wanted:
            await admin.pause_mirrors(wanted)
        return wanted

    _say_done("paused", ask(session, log, question), as_json=as_json)


@mirror.command("resume")
def resume(
    context: typer.Context,
    topics: TopicArguments = None,
    *,
    link: LinkOption = None,
    connect: ConnectOption = None,
    as_json: JsonOption = False,
    log: LogOption = None,
) -> None:
    """Let mirror topics that are paused or stopped copy again."""
    session: Session = context.obj
    if connect is not None:
        named = mirror_to_kafka.mirror_named(topics, link)
        mirror_to_kafka.change(connect, named, "resume", as_json=as_json)
        return
    # Those of a link that are stopped have a reason, so they are resumed by name only.
    states = {*MirrorStatus} - {MirrorStatus.PAUSED}

    async def question(admin: Admin) -> list[str]:
        wanted = await _chosen(admin, topics or [], link, without=states)
        if wanted:
            await admin.resume_mirrors(wanted)
        return wanted

    _say_done("resumed", ask(session, log, question), as_json=as_json)


async def _chosen(
    admin: Admin, topics: Sequence[str], link: str | None, *, without: set[MirrorStatus]
) -> list[str]:
    """Return the topics that are named, or those of a link that are in no state of `without`."""
    if bool(topics) == (link is not None):
        raise UsageError("name mirror topics, or all those of a link by --link NAME")
    if topics:
        return [*topics]
    found = await admin.describe_mirrors()
    if link not in {each.name for each in found.links}:
        raise UsageError(no_link(str(link), found))
    return [each.name for each in found.mirrors if each.link == link and each.status not in without]


def _say_done(what: str, topics: Sequence[str], *, as_json: bool) -> None:
    if as_json:
        say(json.dumps({what: [*topics]}))
    else:
        say(f"{quantity(len(topics), 'topic')} {what}" + (f": {some_of(topics)}" if topics else ""))


def _link_json(link: LinkDescription) -> dict[str, Any]:
    built: dict[str, Any] = msgspec.to_builtins(link, str_keys=True)
    return built


def _mirror_json(mirror: MirrorDescription) -> dict[str, Any]:
    built: dict[str, Any] = msgspec.to_builtins(mirror)
    lags = {
        "lag_records": mirror.lag_records,
        "lag_bytes": mirror.lag_bytes,
        "lag_ms": mirror.lag_ms,
    }
    return built | {"topic_id": id_text(mirror.topic_id)} | lags


class VerifiedPartition(msgspec.Struct, frozen=True):
    """The outcome for a partition of a mirror."""

    topic: str
    partition: int
    start: int
    end: int
    parts_at: int | None
    """The first offset at which the sides differ; None if they don't."""


@mirror.command("verify")
def verify(
    context: typer.Context,
    topics: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TOPIC]...", help="Mirror topics. Default: all of all links."),
    ] = None,
    *,
    link: LinkOption = None,
    config: ConfigOption = None,
    connect: ConnectOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    log: LogOption = None,
) -> None:
    """Compare mirrors with their source; exit with 1 at a difference."""
    session: Session = context.obj
    security = broker_config(config, None).security

    async def compare_there(opened: Log) -> list[VerifiedPartition]:
        with progress_bar("comparing", unit="partitions") as bar:
            progress = _progress(bar)
            found = await mirror_to_kafka.compared(
                opened, connect or "", link, topics or [], progress
            )
        return [
            VerifiedPartition(*where, each.start, each.end, each.parts_at) for where, each in found
        ]

    async def compare(opened: Log) -> list[VerifiedPartition]:
        admin = opened.admin()
        found = await admin.describe_mirrors()
        wanted = _followed(found.mirrors, topics or [], link)
        verified: list[VerifiedPartition] = []
        total = sum(each.num_partitions for each in wanted)
        with progress_bar("comparing", total=total, unit="partitions") as bar:
            for each in found.links:
                own = [one for one in wanted if one.link == each.name]
                if own:
                    verified += await _verify_link(admin, each, own, security, bar)
        return verified

    done = with_log(session, log, compare if connect is None else compare_there)
    if as_json:
        say(json.dumps([msgspec.to_builtins(each) for each in done]))
    else:
        _show_verified(done)
    if any(each.parts_at is not None for each in done):
        raise typer.Exit(EXIT_DIFFERENT)


def _followed(
    mirrors: Sequence[MirrorDescription], topics: Sequence[str], link: str | None
) -> list[MirrorDescription]:
    """Return the mirrors to compare.

    Raises:
        UsageError: a name is not that of a mirror, or nothing is left.
    """
    # A promoted topic has records of its own, in which it differs by right.
    followed = {each.name: each for each in mirrors if each.status is not MirrorStatus.PROMOTED}
    for name in topics:
        if name not in followed:
            raise UsageError(f"{name} is no mirror, or was promoted, so it has no source to equal")
    found = [
        each
        for name, each in followed.items()
        if (not topics or name in topics) and link in (None, each.link)
    ]
    if not found:
        raise UsageError(
            "there is no mirror topic to compare" + (f" of link {link}" if link else "")
        )
    return found


async def _verify_link(
    admin: Admin,
    link: LinkDescription,
    mirrors: Sequence[MirrorDescription],
    security: SecurityConfig,
    bar: Bar,
) -> list[VerifiedPartition]:
    found = []
    progress = _progress(bar)
    async with open_source(link, security) as source:
        for mirror in mirrors:
            settings = await admin.describe_configs(mirror.name)
            # One after another: two would share the network, and report their progress in turns.
            for number in range(mirror.num_partitions):
                where = TopicPartition(mirror.name, number)
                outcome = await admin.compare_mirror(
                    where,
                    source.admin(),
                    mirror.source_topic,
                    is_compacted="compact" in (settings[POLICY].value or ""),
                    on_progress=progress(where),
                )
                bar.advance()
                found.append(_verified(where, outcome))
    return found


def _verified(where: TopicPartition, found: ComparedRange) -> VerifiedPartition:
    return VerifiedPartition(*where, found.start, found.end, found.parts_at)


def _progress(bar: Bar) -> Callable[[TopicPartition], Callable[[int], None]]:
    """Return a function that shows how far a partition is compared: in a bar, or now and then."""
    clock = SystemClock()
    due_ms = clock.now_ms() + PROGRESS_MS

    def report(where: TopicPartition, offset: int) -> None:
        nonlocal due_ms
        bar.what = f"comparing {where.topic}-{where.partition}, equal up to offset {offset}"
        if not bar.is_shown and clock.now_ms() >= due_ms:
            due_ms = clock.now_ms() + PROGRESS_MS
            say(f"{where.topic}-{where.partition}: equal up to offset {offset}", err=True)

    return lambda where: partial(report, where)


def _show_verified(done: Sequence[VerifiedPartition]) -> None:
    grid = Grid("partition", "from", "to", "result")
    for each in done:
        result = "equal" if each.parts_at is None else f"parts at offset {each.parts_at}"
        grid.add_row(f"{each.topic}-{each.partition}", str(each.start), str(each.end), result)
    out().print(grid)
