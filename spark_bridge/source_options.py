"""Options of `spark.read`, `readStream`, `write` and `writeStream`: parses and checks them.

An option of Spark's Kafka source has the same meaning here. Unknown options, and those of the other
kind of query, are refused by name. Additional ones: `path` instead of `kafka.bootstrap.servers`,
`isolationLevel` (committed by default, unlike Spark), `columns`, `valueSchema`, `app`,
`filterPushdown`, `ignoreCorruptBatches`, `batchBytes`, `verifyCrc`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal, TypeAlias

import msgspec

from streamlog.durations import duration_ms
from streamlog.errors import ConfigError
from streamlog.records.compression import Compression
from streamlog.records.partitioners import PARTITIONERS, Partitioner
from streamlog.registry_client import RegistrySettings
from streamlog.registry_client.registry_settings import NAMES, URL

EARLIEST = -2
LATEST = -1
Isolation: TypeAlias = Literal["read_uncommitted", "read_committed"]
COMMITTED: Isolation = "read_committed"
BATCH_BYTES_MAX = 8 * 1024 * 1024
"""Bytes of keys and values in one Arrow batch: bounds the memory of large values."""
COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
KAFKA = "kafka."
REGISTRY = tuple(name if name == URL else f"schema.registry.{name}" for name in NAMES)
"""The settings of the schema registry, by Confluent's names, as options."""

BOTH = (
    "path",
    "kafka.bootstrap.servers",
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "failOnDataLoss",
    "ignoreCorruptBatches",
    "includeHeaders",
    "minPartitions",
    "maxRecordsPerPartition",
    "isolationLevel",
    "columns",
    "valueSchema",
    "app",
    "valueFormat",
    *REGISTRY,
    "batchBytes",
    "verifyCrc",
    "groupIdPrefix",
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
)
BATCH_ONLY = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp", "filterPushdown")
STREAM_ONLY = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
REFUSED = (
    "auto.offset.reset",
    "key.deserializer",
    "value.deserializer",
    "enable.auto.commit",
    "interceptor.classes",
)
"""Consumer settings that the source sets itself, as Spark's Kafka source does."""
OF_SPARK = ("checkpointlocation", "queryname")
"""Options that Spark passes although they are not the source's."""

ByPartition: TypeAlias = dict[str, dict[str, int]]


@dataclass(frozen=True, slots=True)
class SourceKind:
    """A position in every partition: a word, offsets or times by partition, or one time."""

    option: str
    """The option that sets the position, for errors."""
    word: str | None = None
    offsets: ByPartition | None = None
    times_ms: ByPartition | None = None
    time_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """The checked options of a read."""

    path: str | None
    bootstrap_servers: str | None
    client: Mapping[str, str]
    """Settings of the connection, such as `security.protocol`."""
    topics: tuple[str, ...]
    pattern: str | None
    assigned: Mapping[str, tuple[int, ...]] | None
    starting: SourceKind
    ending: SourceKind
    is_batch: bool
    """Whether a batch query can have these options."""
    is_strict_about_times: bool
    """Whether a partition without a record at or after the starting time is an error."""
    fail_on_data_loss: bool
    ignore_corrupt_batches: bool
    include_headers: bool
    min_partitions: int | None
    records_per_partition_max: int | None
    isolation_level: Isolation
    columns: tuple[str, ...]
    value_schema: str | None
    app: str | None
    """The app that declares the types of values, `module:name`."""
    registry: RegistrySettings | None
    """The schema registry that knows the types of values (`valueFormat=registry`)."""
    filter_pushdown: bool
    batch_bytes: int
    verify_crc: bool
    offsets_per_trigger_max: int | None
    offsets_per_trigger_min: int | None
    trigger_delay_ms: int
    group_id: str


def parse_options(options: Mapping[str, str], *, streaming: bool | None = False) -> ReadOptions:
    """Parse the options of a query.

    Args:
        options: the options as Spark passes them.
        streaming: whether the query is a streaming one; None if that is not known yet.

    Raises:
        ConfigError: an option is unknown, missing or malformed; names it.
    """
    # The names of Spark's options ignore case.
    given = GivenOptions({key.lower(): value for key, value in options.items()})
    given.check_known(streaming=streaming)
    path, servers = given.text("path"), given.text("kafka.bootstrap.servers")
    if (path is None) == (servers is None):
        raise ConfigError(
            "give either the option 'path' (a data directory) or 'kafka.bootstrap.servers' "
            "(a running broker), and not both"
        )
    topics, pattern, assigned = _subscription(given)
    columns = tuple(given.names("columns")) or COLUMNS
    if unknown := [name for name in columns if name not in COLUMNS]:
        raise ConfigError(f"option 'columns' names '{unknown[0]}'; known: {', '.join(COLUMNS)}")
    if given.text("valueSchema") is not None and given.text("app") is not None:
        raise ConfigError(
            "give either 'valueSchema' or 'app', not both: each sets the type of values"
        )
    strategy = given.word("startingOffsetsByTimestampStrategy", ("error", "latest"), "error")
    delay = given.text("maxTriggerDelay") or "15m"
    prefix = given.text("groupIdPrefix") or "spark-streamlog"
    return ReadOptions(
        path=path,
        bootstrap_servers=servers,
        client=given.client(),
        topics=topics,
        pattern=pattern,
        assigned=assigned,
        starting=_source_kind(given, "starting", refused="latest" if streaming is False else None),
        ending=_source_kind(given, "ending", refused="earliest"),
        is_batch=given.are_batch_options(),
        is_strict_about_times=strategy == "error",
        fail_on_data_loss=given.flag("failOnDataLoss", default=True),
        ignore_corrupt_batches=given.flag("ignoreCorruptBatches", default=False),
        include_headers=given.flag("includeHeaders", default=False),
        min_partitions=given.number("minPartitions"),
        records_per_partition_max=given.number("maxRecordsPerPartition"),
        isolation_level=_isolation(given),
        # In the order of Spark's Kafka source, whatever order the option has.
        columns=tuple(name for name in COLUMNS if name in columns),
        value_schema=given.text("valueSchema"),
        app=given.text("app"),
        registry=_registry(given),
        filter_pushdown=given.flag("filterPushdown", default=False),
        batch_bytes=given.number("batchBytes") or BATCH_BYTES_MAX,
        verify_crc=given.flag("verifyCrc", default=True),
        offsets_per_trigger_max=given.number("maxOffsetsPerTrigger"),
        offsets_per_trigger_min=given.number("minOffsetsPerTrigger"),
        trigger_delay_ms=_delay(delay),
        group_id=given.text("kafka.group.id")
        or f"{prefix}-{_describe_topics(topics, pattern, assigned)}",
    )


class GivenOptions:
    """Options by lower-case name, as Spark passes them."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = options

    def check_known(self, *, streaming: bool | None) -> None:
        """Check that every option is known.

        Raises:
            ConfigError: an option is unknown; names it and the most similar known one.
        """
        kinds = {True: STREAM_ONLY, False: BATCH_ONLY, None: (*BATCH_ONLY, *STREAM_ONLY)}
        own = (*BOTH, *kinds[streaming])
        known = {name.lower(): name for name in own}
        others = {name.lower() for name in (*BATCH_ONLY, *STREAM_ONLY)} - set(known)
        for key in self._options:
            if key.removeprefix(KAFKA) in REFUSED:
                raise ConfigError(f"the source sets option '{key}' itself: omit it")
            if key in others:
                kind = "streaming" if streaming else "batch"
                raise ConfigError(f"option '{key}' has no meaning in a {kind} query: omit it")
            if key not in known and key not in OF_SPARK and not key.startswith(KAFKA):
                near = get_close_matches(key, known, n=1)
                hint = f"did you mean '{known[near[0]]}'?" if near else f"known: {', '.join(own)}"
                raise ConfigError(f"the streamlog source has no option '{key}'; {hint}")

    def are_batch_options(self) -> bool:
        """Return whether no option requires a streaming query."""
        # A batch query that starts at the latest offset would read nothing.
        begins = (self.text("startingOffsets") or "").strip().lower()
        return begins != "latest" and not any(map(self.text, STREAM_ONLY))

    def text(self, option: str) -> str | None:
        """Return the text of an option; None if it is not given."""
        return self._options.get(option.lower())

    def names(self, option: str) -> list[str]:
        """Return the items of a comma-separated option."""
        return [each.strip() for each in (self.text(option) or "").split(",") if each.strip()]

    def flag(self, option: str, *, default: bool) -> bool:
        """Return an option that is true or false. Raises ConfigError for anything else."""
        return self.word(option, ("true", "false"), str(default).lower()) == "true"

    def word(self, option: str, words: tuple[str, str], default: str) -> str:
        """Return an option that is one of two words. Raises ConfigError for anything else."""
        word = (self.text(option) or default).strip().lower()
        if word not in words:
            raise ConfigError(f"option '{option}' must be {words[0]} or {words[1]}, not '{word}'")
        return word

    def number(self, option: str) -> int | None:
        """Return an option that is a positive whole number. Raises ConfigError for others."""
        text = self.text(option)
        if text is None:
            return None
        if not text.strip().isdecimal() or int(text) < 1:
            raise ConfigError(
                f"option '{option}' must be a whole number of 1 or more, not '{text}'"
            )
        return int(text)

    def client(self) -> dict[str, str]:
        """Return the settings of the connection: `kafka.` options that are not parsed here."""
        own = {"kafka.bootstrap.servers", "kafka.group.id", "kafka.isolation.level"}
        return {
            key.removeprefix(KAFKA): value
            for key, value in self._options.items()
            if key.startswith(KAFKA) and key not in own
        }


def _registry(given: GivenOptions) -> RegistrySettings | None:
    """Return the registry of a read with `valueFormat=registry`."""
    settings = {
        name: text
        for name, option in zip(NAMES, REGISTRY, strict=True)
        if (text := given.text(option))
    }
    if given.word("valueFormat", ("bytes", "registry"), "bytes") == "bytes":
        if settings:
            raise ConfigError("options of a schema registry need 'valueFormat' to be registry")
        return None
    if given.text("valueSchema") is not None or given.text("app") is not None:
        raise ConfigError("give one of 'valueFormat', 'valueSchema' and 'app': each sets the type")
    return RegistrySettings.of(settings)


def _subscription(
    given: GivenOptions,
) -> tuple[tuple[str, ...], str | None, dict[str, tuple[int, ...]] | None]:
    named = [option for option in ("subscribe", "subscribePattern", "assign") if given.text(option)]
    if len(named) != 1:
        raise ConfigError(
            "give one of the options 'subscribe' (one topic, or several with commas), "
            f"'subscribePattern' and 'assign'; {' and '.join(named) or 'none'} is given"
        )
    topics = tuple(given.names("subscribe"))
    if named == ["subscribe"] and not topics:
        raise ConfigError("option 'subscribe' names no topic")
    pattern = given.text("subscribePattern")
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ConfigError(
                f"option 'subscribePattern' is not a regular expression: {error}"
            ) from error
    text = given.text("assign")
    if text is None:
        return topics, pattern, None
    try:
        found = msgspec.json.decode(text, type=dict[str, list[int]])
    except msgspec.MsgspecError as error:
        raise ConfigError(
            f"option 'assign' is not JSON like {{\"topic\": [0, 1]}}: {error}"
        ) from error
    return tuple(found), None, {name: tuple(sorted(set(each))) for name, each in found.items()}


def _source_kind(given: GivenOptions, end: str, *, refused: str | None) -> SourceKind:
    """Return the position of the first of three options, in Spark's order of precedence."""
    if (text := given.text(f"{end}Timestamp")) is not None:
        if not text.strip().isdecimal():
            raise ConfigError(f"option '{end}Timestamp' must be in ms since 1970, not '{text}'")
        return SourceKind(f"{end}Timestamp", time_ms=int(text))
    if (text := given.text(f"{end}OffsetsByTimestamp")) is not None:
        option = f"{end}OffsetsByTimestamp"
        return SourceKind(option, times_ms=_by_partition(option, text))
    option = f"{end}Offsets"
    default = "latest" if end == "ending" or refused is None else "earliest"
    text = given.text(option) or default
    word = text.strip().lower()
    if word == refused:
        raise ConfigError(f"option '{option}' can't be '{refused}': it would read nothing")
    if word in {"earliest", "latest"}:
        return SourceKind(option, word=word)
    return SourceKind(option, offsets=_by_partition(option, text))


def _by_partition(option: str, text: str) -> ByPartition:
    try:
        return msgspec.json.decode(text, type=dict[str, dict[str, int]])
    except msgspec.MsgspecError as error:
        raise ConfigError(
            f"option '{option}' is neither 'earliest' nor 'latest' nor JSON like "
            f'{{"topic": {{"0": 23, "1": -2}}}}: {error}'
        ) from error


def _isolation(given: GivenOptions) -> Isolation:
    level = given.text("isolationLevel") or given.text("kafka.isolation.level") or COMMITTED
    if level == "read_uncommitted":
        return "read_uncommitted"
    if level == COMMITTED:
        return COMMITTED
    raise ConfigError(
        f"option 'isolationLevel' must be read_committed or read_uncommitted, not '{level}'"
    )


def _delay(text: str) -> int:
    try:
        return duration_ms(text)
    except ConfigError as error:
        raise ConfigError(f"option 'maxTriggerDelay': {error}") from error


def _describe_topics(
    topics: tuple[str, ...], pattern: str | None, assigned: Mapping[str, object] | None
) -> str:
    return "-".join(sorted(topics or assigned or ())) or re.sub(r"[^\w.-]+", "_", pattern or "")


OPTIONS = (
    "path",
    "kafka.bootstrap.servers",
    "topic",
    "jobId",
    "queryId",
    "stagingPath",
    "partitioner",
    "app",
)
COMPRESSION = "kafka.compression.type"
BYTES = ("binary", "string")
WRITTEN_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "key": BYTES,
    "value": BYTES,
    "topic": ("string",),
    "partition": ("int", "bigint"),
    "timestamp": ("timestamp",),
    "headers": ("array<struct<key:string,value:binary>>",),
}
"""Columns that rows may have, with their Spark types; `value` is required."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """The checked options of a write."""

    path: str | None
    bootstrap_servers: str | None
    client: Mapping[str, str]
    topic: str | None
    """The topic of rows without a topic of their own."""
    job_id: str | None
    """ID of the job, by which a repetition is recognized."""
    query_id: str | None
    """ID of a streaming query; with a batch's number it is the ID of a job."""
    staging_path: str | None
    """Folder of staged segments for logs that don't accept them before publication."""
    compression: Compression
    partitioner: Partitioner | None
    """The partitioner; None stands for the one that the app declares, else for the default."""
    app: str | None
    """The app that declares topics, `module:name`."""


def parse_write_options(options: Mapping[str, str]) -> WriteOptions:
    """Parse the options of a write.

    Raises:
        ConfigError: an option is unknown, missing or malformed; names it.
    """
    given = {key.lower(): value for key, value in options.items()}
    known = {name.lower(): name for name in OPTIONS}
    for key in given:
        if key not in known and key not in OF_SPARK and not key.startswith(KAFKA):
            near = get_close_matches(key, known, n=1)
            hint = f"did you mean '{known[near[0]]}'?" if near else f"known: {', '.join(OPTIONS)}"
            raise ConfigError(f"the streamlog sink has no option '{key}'; {hint}")
    path, servers = given.get("path"), given.get("kafka.bootstrap.servers")
    if (path is None) == (servers is None):
        raise ConfigError(
            "give either the option 'path' (a data directory) or 'kafka.bootstrap.servers' "
            "(a running broker), and not both"
        )
    for name in ("kafka.partitioner.class", "kafka.partitioner"):
        if name in given:
            raise ConfigError(
                f"option '{name}' has no meaning here: give the option 'partitioner', which is"
                f" {' or '.join(PARTITIONERS)}, or 'app'"
            )
    if given.get("partitioner") is not None and given.get("app") is not None:
        raise ConfigError("give either 'partitioner' or 'app', not both: each sets the partitioner")
    own = {"kafka.bootstrap.servers", COMPRESSION}
    checkpoint = given.get("checkpointlocation")
    # A query that restarts with its checkpoint has the same ID, so a repeated batch is recognized.
    derived = checkpoint and "query-" + hashlib.sha256(checkpoint.encode()).hexdigest()[:16]
    return WriteOptions(
        path=path,
        bootstrap_servers=servers,
        client={
            key.removeprefix(KAFKA): value
            for key, value in given.items()
            if key.startswith(KAFKA) and key not in own
        },
        topic=given.get("topic"),
        job_id=given.get("jobid"),
        query_id=given.get("queryid") or derived,
        staging_path=given.get("stagingpath"),
        compression=Compression.parse(given.get(COMPRESSION, "none")),
        partitioner=_partitioner(given.get("partitioner")),
        app=given.get("app"),
    )


def _partitioner(name: str | None) -> Partitioner | None:
    for known in PARTITIONERS:
        if name == known:
            return known
    if name is None:
        return None
    raise ConfigError(f"option 'partitioner' must be {' or '.join(PARTITIONERS)}, not '{name}'")


def check_columns(types: Mapping[str, str], topic: str | None) -> None:
    """Check that rows can be written as records.

    Raises:
        ConfigError: a column is missing, unknown or of another type.
    """
    for name, kind in types.items():
        if name not in WRITTEN_COLUMNS:
            raise ConfigError(f"rows have a column '{name}'; known: {', '.join(WRITTEN_COLUMNS)}")
        if kind not in WRITTEN_COLUMNS[name]:
            raise ConfigError(
                f"column '{name}' has type {kind}; it must be {' or '.join(WRITTEN_COLUMNS[name])}"
            )
    if "value" not in types:
        raise ConfigError("rows need a column 'value'")
    if topic is None and "topic" not in types:
        raise ConfigError("rows have no topic: give the option 'topic', or a column 'topic'")
