"""The options of `df.write` and `df.writeStream`, checked."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from spark_bridge.options import KAFKA, OF_SPARK
from streamlog.errors import ConfigError
from streamlog.records.compression import Compression
from streamlog.records.partitioners import PARTITIONERS, Partitioner

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
COLUMNS: Mapping[str, tuple[str, ...]] = {
    "key": BYTES,
    "value": BYTES,
    "topic": ("string",),
    "partition": ("int", "bigint"),
    "timestamp": ("timestamp",),
    "headers": ("array<struct<key:string,value:binary>>",),
}
"""What rows may have, in Spark's words; the value they have to have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """What the user asked for, checked."""

    path: str | None
    bootstrap_servers: str | None
    client: Mapping[str, str]
    topic: str | None
    """Where rows go that have no topic of their own."""
    job_id: str | None
    """A name for the job, by which it is known when it is repeated."""
    query_id: str | None
    """A name for a streaming query: with a batch's number it is the name of a job."""
    staging_path: str | None
    """Where segments wait that no broker takes before they are published."""
    compression: Compression
    partitioner: Partitioner | None
    """Where keys go; None: as the app declares, or as it is by default."""
    app: str | None
    """Where topics are declared, `module:name`."""


def parse_write_options(options: Mapping[str, str]) -> WriteOptions:
    """Check the options of a write.

    Raises:
        ConfigError: one is unknown, missing or malformed; the text names it.
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
                f"option '{name}' means nothing here: give the option 'partitioner', which is"
                f" {' or '.join(PARTITIONERS)}, or 'app'"
            )
    if given.get("partitioner") is not None and given.get("app") is not None:
        raise ConfigError("give either 'partitioner' or 'app': both say where keys go")
    own = {"kafka.bootstrap.servers", COMPRESSION}
    checkpoint = given.get("checkpointlocation")
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
    raise ConfigError(f"option 'partitioner' is {' or '.join(PARTITIONERS)}, not '{name}'")


def check_columns(types: Mapping[str, str], topic: str | None) -> None:
    """Refuse rows that can't be records.

    Raises:
        ConfigError: a column is missing, unknown or of another type.
    """
    for name, kind in types.items():
        if name not in COLUMNS:
            raise ConfigError(f"rows have a column '{name}'; known: {', '.join(COLUMNS)}")
        if kind not in COLUMNS[name]:
            raise ConfigError(
                f"column '{name}' is of type {kind}; it has to be {' or '.join(COLUMNS[name])}"
            )
    if "value" not in types:
        raise ConfigError("rows need a column 'value'")
    if topic is None and "topic" not in types:
        raise ConfigError("give the option 'topic', or rows a column 'topic'")
