"""`streamlog topics`, `configs` and `client-metrics`: topics, partitions, and settings.

Shells around `Admin`. `client-metrics` has the options of Kafka's `kafka-client-metrics.sh`. A
change takes effect at once and survives restarts. A setting that a broker reads only when it starts
belongs in its file (docs/configuration.md).
"""

from __future__ import annotations

import json
import secrets
from base64 import urlsafe_b64encode
from typing import Annotated, Final, Literal, TypeAlias

import typer
from rich.markup import escape
from rich.table import Table as Grid

from streamlog.cli.output.progress_bar import progress_bar
from streamlog.cli.session import LogOption, Session, ask, complete_topics, hinted, run
from streamlog.cli.terminal import JsonOption, out, parse_name_values, print_grid, say
from streamlog.client.admin import Admin
from streamlog.client.admin.config_admin import ALL_BROKERS, Append, Change, ConfigEntry, Subtract
from streamlog.client.admin.topic_admin import PARTITIONS_DEFAULT, REPLICAS_DEFAULT, NewTopic
from streamlog.client.consumer import Consumer
from streamlog.errors import LogError, UsageError, quantity
from streamlog.log import Log
from streamlog.record import TopicPartition
from streamlog.records.partitioners import DEFAULT, matching_partitioners

configs = typer.Typer(help="Settings of topics and brokers.", no_args_is_help=True)

DEFAULT_SOURCE: Final = "default"
"""Source of a value that was never set."""
HIDDEN: Final = "(hidden)"
BrokerName: TypeAlias = int | Literal["all"]

Topic = Annotated[
    str | None, typer.Option("--topic", metavar="NAME", help="Settings of this topic.")
]
Broker = Annotated[
    str | None,
    typer.Option(
        "--broker",
        metavar="ID|all",
        help="Settings of this broker; all: settings that apply to every broker.",
    ),
]
BrokerLogger = Annotated[
    int | None,
    typer.Option(
        "--broker-logger", metavar="ID", help="Levels of this broker's loggers, until it stops."
    ),
]
Pairs = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Set a value; repeatable."),
]
Added = Annotated[
    list[str] | None,
    typer.Option("--append", metavar="NAME=VALUE", help="Add to a list value; repeatable."),
]
Taken = Annotated[
    list[str] | None,
    typer.Option("--subtract", metavar="NAME=VALUE", help="Remove from a list value; repeatable."),
]
Unset = Annotated[
    list[str] | None,
    typer.Option("--unset", metavar="NAME", help="Return to the default; repeatable."),
]


@configs.command("describe")
def configs_describe(
    context: typer.Context,
    *,
    topic: Topic = None,
    broker: Broker = None,
    broker_logger: BrokerLogger = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Include defaults, and explain every setting.")
    ] = False,
    as_json: JsonOption = False,
    log: LogOption = None,
) -> None:
    """Show the settings of a topic or broker, and where each was set; or the levels of loggers.

    Without --topic, --broker and --broker-logger, shows the settings of the broker that answers.
    """
    number = _broker(broker)
    session: Session = context.obj
    if broker_logger is None:
        found = ask(session, log, lambda admin: admin.describe_configs(topic, broker=number))
    else:
        _check_alone(topic, broker)
        found = ask(session, log, lambda admin: admin.describe_loggers(broker_logger))
    shown = [each for each in found.values() if everything or each.source != DEFAULT_SOURCE]
    columns = ("setting", "value", "set for", *(("meaning",) if everything else ()))
    grid = Grid(*columns)
    for each in sorted(shown, key=lambda each: each.name):
        meaning = [escape(each.documentation or "")] if everything else []
        grid.add_row(each.name, escape(_value(each)), each.source, *meaning)
    print_grid(grid, as_json=as_json, markup=True)


@configs.command("alter")
def configs_alter(
    context: typer.Context,
    *,
    topic: Topic = None,
    broker: Broker = None,
    broker_logger: BrokerLogger = None,
    assigned: Pairs = None,
    append: Added = None,
    subtract: Taken = None,
    unset: Unset = None,
    check: Annotated[
        bool, typer.Option("--check", help="Validate the change without making it.")
    ] = False,
    log: LogOption = None,
) -> None:
    """Change settings of a topic or broker, or levels of loggers: all, or none at an error."""
    number = _broker(broker)
    if topic is None and number is None and broker_logger is None:
        raise UsageError("configs alter needs --topic NAME, --broker ID|all or --broker-logger ID")
    if broker_logger is not None:
        _check_alone(topic, broker)
        if append or subtract or check:
            raise UsageError("levels of loggers are changed by --set and --unset alone")
        levels: dict[str, str | None] = {**parse_name_values("--set", assigned or [])}
        levels |= dict.fromkeys(unset or [])
        session: Session = context.obj
        ask(session, log, lambda admin: admin.alter_loggers(broker_logger, levels))
        say(f"changed for the loggers of broker {broker_logger}: {', '.join(levels)}")
        return
    changes = _changes(assigned or [], append or [], subtract or [], unset or [])
    if not changes:
        raise UsageError("configs alter needs a change: --set, --append, --subtract or --unset")
    session = context.obj
    ask(
        session,
        log,
        lambda admin: admin.alter_configs(changes, topic=topic, broker=number, validate_only=check),
    )
    whose = f"topic {topic}" if topic is not None else f"broker {broker}"
    done = "would be changed" if check else "changed"
    say(f"{done} for {whose}: {', '.join(changes)}")


def _check_alone(topic: str | None, broker: str | None) -> None:
    if topic is not None or broker is not None:
        raise UsageError("--broker-logger stands alone: omit --topic and --broker")


def _changes(
    assigned: list[str], append: list[str], subtract: list[str], unset: list[str]
) -> dict[str, Change]:
    """Return the changes that the options ask for, by setting.

    Raises:
        UsageError: two options change the same setting.
    """
    appended = {k: Append(v) for k, v in parse_name_values("--append", append).items()}
    subtracted = {k: Subtract(v) for k, v in parse_name_values("--subtract", subtract).items()}
    said: list[tuple[str, Change]] = [
        *parse_name_values("--set", assigned).items(),
        *appended.items(),
        *subtracted.items(),
        *((name, None) for name in unset),
    ]
    changes = dict(said)
    for name in changes:
        if sum(each == name for each, _ in said) > 1:
            raise UsageError(
                f"{name} is given twice: use one of --set, --append, --subtract, --unset"
            )
    return changes


def _broker(text: str | None) -> BrokerName | None:
    if text is None:
        return None
    if text == ALL_BROKERS:
        return "all"
    if not text.isdecimal():
        raise UsageError(f"--broker takes a broker's ID or 'all', not {text!r}")
    return int(text)


def _value(entry: ConfigEntry) -> str:
    return entry.value if entry.value is not None else HIDDEN if entry.is_sensitive else ""


AHEAD_MAX = "message.timestamp.after.max.ms"
CHECKED = 1_000
CHECKED_MAX = 100_000
POLL_MS = 200

topics = typer.Typer(help="The topics of a log.", no_args_is_help=True)


@topics.command("list")
def topics_list(
    context: typer.Context,
    *,
    internal: Annotated[
        bool, typer.Option("--internal", help="Include the log's internal topics.")
    ] = False,
    as_json: JsonOption = False,
    log: LogOption = None,
) -> None:
    """List topics and their numbers of partitions."""
    described = ask(context.obj, log, lambda admin: admin.list_topics(internal=internal))
    grid = Grid("topic", "partitions")
    for each in sorted(described, key=lambda each: each.name):
        grid.add_row(each.name, str(each.partitions))
    print_grid(grid, as_json=as_json)


@topics.command("create")
def topics_create(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The new topic.")],
    partitions: Annotated[
        int,
        typer.Option(
            "--partitions", help="Number of partitions. Default: the broker's num.partitions."
        ),
    ] = PARTITIONS_DEFAULT,
    *,
    replicas: Annotated[
        int,
        typer.Option(
            "--replicas",
            help="Replicas of each partition. Default: the broker's default.replication.factor.",
        ),
    ] = REPLICAS_DEFAULT,
    config: Annotated[
        list[str] | None,
        typer.Option("--config", metavar="NAME=VALUE", help="A setting of the topic; repeatable."),
    ] = None,
    log: LogOption = None,
) -> None:
    """Create a topic."""
    configs = parse_name_values("--config", config or [])
    new = NewTopic(name, partitions=partitions, replication_factor=replicas, configs=configs)
    ask(context.obj, log, lambda admin: admin.create_topics([new]), create=True)
    say(f"created {name}")


@topics.command("alter")
def topics_alter(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The topic.", autocompletion=complete_topics)],
    partitions: Annotated[int, typer.Option("--partitions", help="The new total number.")],
    log: LogOption = None,
) -> None:
    """Add partitions to a topic. From then on, keys may go to other partitions than before."""
    ask(context.obj, log, lambda admin: admin.create_partitions(name, partitions))
    say(f"{name} has {quantity(partitions, 'partition')}")


@topics.command("delete")
def topics_delete(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The topic.", autocompletion=complete_topics)],
    log: LogOption = None,
) -> None:
    """Delete a topic and all its records, for good."""
    ask(context.obj, log, lambda admin: admin.delete_topics([name]))
    say(f"deleted {name}")


@topics.command("describe")
def topics_describe(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The topic.", autocompletion=complete_topics)],
    *,
    as_json: JsonOption = False,
    log: LogOption = None,
) -> None:
    """Show the partitions of a topic with their first and next offsets."""
    session: Session = context.obj

    async def main() -> tuple[Grid, list[str]]:
        async with session.open(log) as opened:
            parts = await partitions_of(opened, name)
            notes = [await _time_bound(opened, name), *await _seal(opened, name)]
            async with opened.consumer() as consumer:
                begin = await consumer.begin_offsets(parts)
                end = await consumer.end_offsets(parts)
        grid = Grid("partition", "first offset", "next offset", "offsets")
        for part in parts:
            numbers = (part.partition, begin[part], end[part], end[part] - begin[part])
            grid.add_row(*map(str, numbers))
        return grid, notes

    grid, notes = run(main())
    print_grid(grid, as_json=as_json)
    for note in notes:
        # With --json, standard output has nothing but JSON.
        say(note, err=as_json)


async def _seal(log: Log, topic: str) -> list[str]:
    """Return a line about why producers are refused, if another cluster takes the topic over."""
    try:
        seals = (await log.admin().describe_mirrors()).seals
    except LogError:  # Apache Kafka has no seals, and not every user may look at them.
        return []
    return [
        f"{each.status.value.lower()} for cluster {each.target_cluster_id}: takes no records here"
        " (docs/mirroring.md)"
        for each in seals
        if each.topic == topic
    ]


async def _time_bound(log: Log, topic: str) -> str:
    """Return a line about how far record timestamps may be ahead of the broker's clock."""
    try:
        found = (await log.admin().describe_configs(topic)).get(AHEAD_MAX)
    except LogError as error:  # Not every user may look at settings.
        return f"{AHEAD_MAX}: {error}"
    if found is None:  # Kafka before 3.6
        return "records of any timestamp are accepted"
    return f"{AHEAD_MAX}={found.value}: timestamps further ahead of the broker's clock are refused"


@topics.command("check")
def topics_check(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The topic.", autocompletion=complete_topics)],
    *,
    records: Annotated[
        int,
        typer.Option(
            "--records",
            min=1,
            max=CHECKED_MAX,
            help="How many of the newest records of each partition to check.",
        ),
    ] = CHECKED,
    as_json: JsonOption = False,
    log: LogOption = None,
) -> None:
    """Find out which partitioner wrote a topic's keys: murmur2, crc32, fnv1a, or none of them."""
    session: Session = context.obj

    async def main() -> tuple[dict[str, int], int, int]:
        async with session.open(log) as opened:
            parts = await partitions_of(opened, name)
            async with opened.consumer() as consumer:
                keys = await _newest_keys(opened, consumer, parts, records)
        return matching_partitioners(keys, len(parts)), len(keys), len(parts)

    fits, count, partitions = run(main())
    grid = Grid("partitioner", "keys that fit", "of")
    for each, number in fits.items():
        grid.add_row(each, str(number), str(count))
    print_grid(grid, as_json=as_json)
    # With --json, standard output has nothing but JSON.
    say(_verdict(name, fits, count, partitions), err=as_json)


def _verdict(name: str, fits: dict[str, int], count: int, partitions: int) -> str:
    if partitions == 1:
        return "One partition holds all keys: every partitioner fits."
    if not count:
        return "No record has a key, so the partitioner can't be determined."
    fit = [each for each, number in fits.items() if number == count]
    if not fit:
        return (
            "No partitioner fits: producers chose the partitions, or used several partitioners. "
            "Read the topic through .repartition(name=...) to look rows up by key."
        )
    if fit == [DEFAULT]:
        return f"{DEFAULT} fits. It is the default: there is nothing to declare."
    if len(fit) > 1:
        return f"{', '.join(fit)} fit: too few keys to decide. Check more: --records."
    return f"{fit[0]} fits. Declare it: app.topic({name!r}, ..., partitioner={fit[0]!r})"


async def _newest_keys(
    log: Log, consumer: Consumer, parts: list[TopicPartition], records: int
) -> list[tuple[bytes, int]]:
    """Return the distinct keys of the newest records, each with its partition."""
    begins, ends = await consumer.begin_offsets(parts), await consumer.end_offsets(parts)
    consumer.assign(parts)
    for part in parts:
        consumer.seek(part, max(begins[part], ends[part] - records))
    reader = log.range_reader(consumer, ends)
    found: set[tuple[bytes, int]] = set()
    total = sum(min(ends[part] - begins[part], records) for part in parts)
    with progress_bar("reading", total=total, unit="records") as bar:
        while not await reader.is_at_end():
            for part, polled in (await reader.poll(timeout_ms=POLL_MS)).items():
                found |= {(each.key, part.partition) for each in polled if each.key}
                bar.advance(len(polled))
    return sorted(found)


async def partitions_of(log: Log, topic: str) -> list[TopicPartition]:
    """Return the partitions of a topic.

    Raises:
        UnknownTopicOrPartition: there is no such topic.
    """
    try:
        (described,) = await log.admin().describe_topics([topic])
    except LogError as error:
        raise await hinted(log, error) from error
    return [TopicPartition(topic, number) for number in range(described.partitions)]


client_metrics = typer.Typer(help="Metrics that clients push to brokers.", no_args_is_help=True)

ID_BYTES = 16
SETTINGS = {"metrics": "metrics", "interval": "interval.ms", "match": "match"}
"""The options of `alter`, with the settings that they set."""

Name = Annotated[
    str | None, typer.Option("--name", metavar="NAME", help="The name of the subscription.")
]


@client_metrics.command("list")
def client_metrics_list(
    context: typer.Context, *, as_json: JsonOption = False, log: LogOption = None
) -> None:
    """List the names of the subscriptions."""
    names = ask(context.obj, log, lambda admin: admin.list_client_metrics())
    if as_json:
        typer.echo(json.dumps([*names]))
        return
    for name in names:
        out().print(name)


@client_metrics.command("describe")
def client_metrics_describe(
    context: typer.Context,
    *,
    name: Name = None,
    as_json: JsonOption = False,
    log: LogOption = None,
) -> None:
    """Show a subscription, or all of them."""

    async def look(admin: Admin) -> dict[str, dict[str, ConfigEntry]]:
        names = await admin.list_client_metrics() if name is None else [name]
        return {each: await admin.describe_client_metrics(each) for each in names}

    grid = Grid("name", *SETTINGS.values())
    for each, configs in ask(context.obj, log, look).items():
        values = (configs[setting].value or "" for setting in SETTINGS.values())
        grid.add_row(escape(each), *map(escape, values))
    print_grid(grid, as_json=as_json, markup=True)


@client_metrics.command("alter")
def client_metrics_alter(
    context: typer.Context,
    *,
    name: Name = None,
    generate_name: Annotated[
        bool, typer.Option("--generate-name", help="Make up a name for a new subscription.")
    ] = False,
    metrics: Annotated[
        str | None,
        typer.Option(
            "--metrics",
            metavar="PREFIX,...",
            help="Prefixes of the names of metrics; '*': all; empty: the default, none.",
        ),
    ] = None,
    interval: Annotated[
        str | None,
        typer.Option(
            "--interval",
            metavar="MS",
            help="How often clients push, in ms; empty: the default, 300000.",
        ),
    ] = None,
    match: Annotated[
        str | None,
        typer.Option(
            "--match",
            metavar="KEY=REGEX,...",
            help="Only clients that meet all conditions, such as client_id=orders-.*; empty: all.",
        ),
    ] = None,
    log: LogOption = None,
) -> None:
    """Create a subscription, or change one; what is not given stays as it is."""
    if (name is None) is not generate_name:
        raise UsageError("client-metrics alter needs either --name NAME or --generate-name")
    given = {"metrics": metrics, "interval": interval, "match": match}
    changes: dict[str, Change] = {
        SETTINGS[option]: value or None for option, value in given.items() if value is not None
    }
    if not changes:
        raise UsageError("client-metrics alter needs a change: --metrics, --interval or --match")
    own = name or urlsafe_b64encode(secrets.token_bytes(ID_BYTES)).decode().rstrip("=")
    ask(context.obj, log, lambda admin: admin.alter_client_metrics(own, changes), create=True)
    say(f"changed subscription {own}: {', '.join(changes)}")


@client_metrics.command("delete")
def client_metrics_delete(
    context: typer.Context, *, name: Name = None, log: LogOption = None
) -> None:
    """Delete a subscription; clients stop pushing what no other one asks for."""
    if name is None:
        raise UsageError("client-metrics delete needs --name NAME")
    ask(context.obj, log, lambda admin: admin.delete_client_metrics(name))
    say(f"deleted subscription {name}")
