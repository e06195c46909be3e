"""TopicConfig: the table of topic settings, a part of the settings in `config/broker`.

Most settings have a second name, the broker's, which sets the default of all topics. The lists of
throttled replicas and Kafka's settings of remote storage have only one.

Rule of the file, as in `config/broker`: a setting without an effect is not declared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from streamlog.broker.config.settings import (
    INT_MAX,
    LONG_MAX,
    Form,
    NamedSetting,
    Setting,
    boolean,
    check_table,
    choice,
    declared_settings,
    fraction,
    ignored_settings,
    integer,
    items,
    replace_settings,
    texts_of,
    unknown_setting,
    words,
)
from streamlog.records.batch import UNCOMPRESSED_BYTES_MAX
from streamlog.records.compression import GZIP_LEVEL, LZ4_LEVEL, ZSTD_LEVEL

SEGMENT_BYTES_MAX = INT_MAX
"""Positions inside a segment take four bytes in its index."""
SEGMENT_BYTES_MIN = 1024
MESSAGE_BYTES_MAX = 128 * 1024 * 1024
"""The limit of `max.message.bytes`: a scan takes a larger batch for damage."""
INDEX_ENTRY_BYTES_MAX = 12
HOUR_MS = 60 * 60 * 1000
DAY_MS = 24 * HOUR_MS
FOR_EVER = -1
CREATE_TIME = "CreateTime"
LOG_APPEND_TIME = "LogAppendTime"
AS_PRODUCED = "producer"
UNCOMPRESSED = "uncompressed"
BY_REPLICAS = 0
"""The value of `min.insync.replicas` that derives the number from the replication factor."""
INSYNC_USUAL = 2
"""The derived number with three replicas or more: any one of them can fail."""
EVERY = "*"
"""All replicas, instead of a list."""
REPLICAS = Form(
    r"|\*|[0-9]+:[0-9]+(,[0-9]+:[0-9]+)*",
    "* for all replicas, or a comma-separated list of PARTITION:BROKER",
)
FLUSH_NEVER = 2**63 - 1
"""The value of `flush.messages` and `flush.ms` that leaves syncs to the operating system."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """How the partitions of one topic are stored.

    Raises:
        ConfigError: a value is out of range.
    """

    cleanup_policy: str = words(
        "delete",
        NamedSetting(
            "cleanup.policy",
            "What happens to old records: 'delete' removes whole segments by retention.ms and"
            " retention.bytes, 'compact' keeps at least the newest record of each key.",
            broker_name="log.cleanup.policy",
        ),
        ("delete", "compact"),
    )
    # Kafka keeps a week. Records carry event time, so with a limit of a week, a year of history
    # would be lost within minutes after it is loaded.
    retention_ms: int = integer(
        FOR_EVER,
        NamedSetting(
            "retention.ms",
            "How long records are kept under cleanup.policy 'delete', counted from the newest"
            " timestamp in their segment; -1: for ever. Timestamps are usually those of events, so"
            " old events can expire as soon as they are written.",
            "ms",
            "log.retention.ms",
        ),
        minimum=FOR_EVER,
    )
    retention_bytes: int = integer(
        FOR_EVER,
        NamedSetting(
            "retention.bytes",
            "How large a partition may grow under cleanup.policy 'delete' before its oldest"
            " segments are removed; -1: without a limit.",
            "bytes",
            "log.retention.bytes",
        ),
        minimum=FOR_EVER,
    )
    file_delete_delay_ms: int = integer(
        60_000,
        NamedSetting(
            "file.delete.delay.ms",
            "How long the files of a removed segment stay on disk, under another name, for readers"
            " that have them open.",
            "ms",
            "log.segment.delete.delay.ms",
        ),
    )
    segment_bytes: int = integer(
        1024 * 1024 * 1024,
        NamedSetting(
            "segment.bytes",
            "The size of a segment file; one that would grow beyond it is sealed first. Retention"
            " removes whole segments.",
            "bytes",
            "log.segment.bytes",
        ),
        minimum=SEGMENT_BYTES_MIN,
        maximum=SEGMENT_BYTES_MAX,
    )
    segment_ms: int = integer(
        7 * DAY_MS,
        NamedSetting(
            "segment.ms",
            "A segment is sealed when a record arrives whose timestamp is this much newer than that"
            " of the segment's first batch.",
            "ms",
            "log.roll.ms",
        ),
        minimum=1,
    )
    segment_index_bytes: int = integer(
        10 * 1024 * 1024,
        NamedSetting(
            "segment.index.bytes",
            "The size of a segment's index; a segment is sealed when its index is full.",
            "bytes",
            "log.index.size.max.bytes",
        ),
        minimum=INDEX_ENTRY_BYTES_MAX,
        maximum=INT_MAX,
    )
    index_interval_bytes: int = integer(
        4096,
        NamedSetting(
            "index.interval.bytes",
            "The least number of bytes of log between two index entries; applies to new segments.",
            "bytes",
            "log.index.interval.bytes",
        ),
        maximum=INT_MAX,
    )
    max_message_bytes: int = integer(
        1024 * 1024 + 12,
        NamedSetting(
            "max.message.bytes",
            "The largest batch that is accepted, in bytes on disk (compressed).",
            "bytes",
            "message.max.bytes",
        ),
        maximum=MESSAGE_BYTES_MAX,
    )
    max_decompressed_bytes: int = integer(
        64 * 1024 * 1024,
        NamedSetting(
            "max.decompressed.bytes",
            "The limit of the records of one batch after decompression; a larger batch is refused."
            " Not a setting of Kafka.",
            "bytes",
            "message.max.decompressed.bytes",
        ),
        maximum=UNCOMPRESSED_BYTES_MAX,
    )
    validate_records: bool = boolean(
        NamedSetting(
            "validate.records",
            "Whether every record of a batch is checked before the batch is appended: lengths,"
            " offsets, timestamps, header keys. Without it only the header of a batch is checked,"
            " and a batch that its producer has damaged stops its readers. Compacted topics and"
            " message.timestamp.before.max.ms always check records. Not a setting of Kafka.",
            broker_name="log.validate.records",
        ),
        default=True,
    )
    compression_type: str = choice(
        AS_PRODUCED,
        NamedSetting(
            "compression.type",
            "How batches are compressed on disk. 'producer': unchanged. Otherwise, batches with"
            " another codec are compressed again, which costs the broker time, and have to respect"
            " max.message.bytes before and after.",
            broker_name="compression.type",
        ),
        (UNCOMPRESSED, "gzip", "snappy", "lz4", "zstd", AS_PRODUCED),
    )
    compression_gzip_level: int = integer(
        GZIP_LEVEL,
        NamedSetting(
            "compression.gzip.level",
            "The level of compression.type 'gzip': higher is smaller and slower.",
            broker_name="compression.gzip.level",
        ),
        minimum=1,
        maximum=9,
    )
    compression_lz4_level: int = integer(
        LZ4_LEVEL,
        NamedSetting(
            "compression.lz4.level",
            "The level of compression.type 'lz4': higher is smaller and slower.",
            broker_name="compression.lz4.level",
        ),
        minimum=1,
        maximum=17,
    )
    compression_zstd_level: int = integer(
        ZSTD_LEVEL,
        NamedSetting(
            "compression.zstd.level",
            "The level of compression.type 'zstd': higher is smaller and slower, much slower from"
            " 10 on.",
            broker_name="compression.zstd.level",
        ),
        minimum=-131_072,
        maximum=22,
    )
    message_timestamp_type: str = choice(
        CREATE_TIME,
        NamedSetting(
            "message.timestamp.type",
            "CreateTime: records keep the timestamps of their producer. LogAppendTime: they get the"
            " broker's time when they are appended.",
            broker_name="log.message.timestamp.type",
        ),
        (CREATE_TIME, LOG_APPEND_TIME),
    )
    message_timestamp_before_max_ms: int = integer(
        LONG_MAX,
        NamedSetting(
            "message.timestamp.before.max.ms",
            "With CreateTime: records that are older than this, by the broker's clock, are refused."
            " Below the default, the records of every batch have to be decoded to check it.",
            "ms",
            "log.message.timestamp.before.max.ms",
        ),
    )
    message_timestamp_after_max_ms: int = integer(
        HOUR_MS,
        NamedSetting(
            "message.timestamp.after.max.ms",
            "With CreateTime: records that are further in the future than this, by the broker's"
            " clock, are refused. A record from the future prevents its segment, and those after"
            " it, from expiring, and makes later records late for windows. Without"
            " validate.records, the maximum timestamp in the header of a batch is checked.",
            "ms",
            "log.message.timestamp.after.max.ms",
        ),
    )
    min_cleanable_dirty_ratio: float = fraction(
        0.5,
        NamedSetting(
            "min.cleanable.dirty.ratio",
            "Under cleanup.policy 'compact': a partition is compacted when more than this share of"
            " it, by bytes, is not compacted. A smaller share saves space and costs more work.",
            broker_name="log.cleaner.min.cleanable.ratio",
        ),
    )
    min_compaction_lag_ms: int = integer(
        0,
        NamedSetting(
            "min.compaction.lag.ms",
            "Under cleanup.policy 'compact': records that are younger than this, and those after"
            " them, are not compacted.",
            "ms",
            "log.cleaner.min.compaction.lag.ms",
        ),
    )
    max_compaction_lag_ms: int = integer(
        LONG_MAX,
        NamedSetting(
            "max.compaction.lag.ms",
            "Under cleanup.policy 'compact': a partition with older records that are not compacted"
            " is compacted whatever its dirty ratio; its segments are sealed early enough for"
            " that.",
            "ms",
            "log.cleaner.max.compaction.lag.ms",
        ),
        minimum=1,
    )
    delete_retention_ms: int = integer(
        DAY_MS,
        NamedSetting(
            "delete.retention.ms",
            "Under cleanup.policy 'compact': how long a tombstone, a record that deletes a key,"
            " stays after the first compaction that finds it. A reader that begins at the start has"
            " to reach the end within this time to see every deletion.",
            "ms",
            "log.cleaner.delete.retention.ms",
        ),
    )
    mark_quiet_ms: int = integer(
        5_000,
        NamedSetting(
            "mark.quiet.ms",
            "How long a partition has to be without appends before a time mark may be written to"
            " it, if a reader's event time waits for it; -1: never. Compacted topics have no"
            " marks. Not a setting of Kafka.",
            "ms",
            "log.mark.quiet.ms",
        ),
        minimum=-1,
    )
    flush_messages: int = integer(
        FLUSH_NEVER,
        NamedSetting(
            "flush.messages",
            "With flush=os: how many records may be acknowledged before they are on disk.",
            broker_name="log.flush.interval.messages",
        ),
        minimum=1,
    )
    flush_ms: int = integer(
        FLUSH_NEVER,
        NamedSetting(
            "flush.ms",
            "With flush=os: how long a record waits at most before it is synced to disk.",
            "ms",
            "log.flush.interval.ms",
        ),
    )

    min_insync_replicas: int = integer(
        BY_REPLICAS,
        NamedSetting(
            "min.insync.replicas",
            "How many replicas must have a record before it counts: with fewer in sync, acks=all"
            " is refused, and consumers see no new records. Never more than there are replicas; 0:"
            " 2 if there are 3 or more, otherwise 1.",
            broker_name="min.insync.replicas",
        ),
        maximum=INT_MAX,
    )
    unclean_leader_election: bool = boolean(
        NamedSetting(
            "unclean.leader.election.enable",
            "Whether a replica that may lack acknowledged records may become leader if no other"
            " replica is alive: it loses records to make the partition available.",
            broker_name="unclean.leader.election.enable",
        ),
        default=False,
    )
    leader_throttled_replicas: str = items(
        "",
        NamedSetting(
            "leader.replication.throttled.replicas",
            "Replicas from which, while they lead, followers that are not in sync fetch no more"
            " than the broker's leader.replication.throttled.rate.",
        ),
        REPLICAS,
    )
    follower_throttled_replicas: str = items(
        "",
        NamedSetting(
            "follower.replication.throttled.replicas",
            "Replicas that fetch no more than the broker's follower.replication.throttled.rate"
            " while they are not in sync.",
        ),
        REPLICAS,
    )

    preallocate: bool = boolean(
        NamedSetting(
            "preallocate",
            ignored_settings("segments grow with the records that are written"),
            broker_name="log.preallocate",
        ),
        default=False,
    )
    segment_jitter_ms: int = integer(
        0,
        NamedSetting(
            "segment.jitter.ms",
            ignored_settings("segments are sealed between requests, each by its first record"),
            "ms",
            broker_name="log.roll.jitter.ms",
        ),
    )
    local_retention_bytes: int = integer(
        -2,
        NamedSetting(
            "local.retention.bytes",
            ignored_settings("there is no remote storage"),
            "bytes",
            broker_name="log.local.retention.bytes",
        ),
        minimum=-2,
    )
    local_retention_ms: int = integer(
        -2,
        NamedSetting(
            "local.retention.ms",
            ignored_settings("there is no remote storage"),
            "ms",
            broker_name="log.local.retention.ms",
        ),
        minimum=-2,
    )
    remote_storage_enable: str = choice(
        "false",
        NamedSetting("remote.storage.enable", "Only false: there is no remote storage."),
        ("false",),
    )
    remote_log_copy_disable: bool = boolean(
        NamedSetting("remote.log.copy.disable", ignored_settings("there is no remote storage")),
        default=False,
    )
    remote_log_delete_on_disable: bool = boolean(
        NamedSetting(
            "remote.log.delete.on.disable", ignored_settings("there is no remote storage")
        ),
        default=False,
    )

    def __post_init__(self) -> None:
        check_table(self)

    @property
    def deletes(self) -> bool:
        """Whether retention by time and size applies."""
        return "delete" in self.cleanup_policy

    @property
    def compacts(self) -> bool:
        """Whether older records of a key are removed."""
        return "compact" in self.cleanup_policy

    @property
    def takes_marks(self) -> bool:
        """Whether time marks may be written (decision 008)."""
        # In a compacted topic a record's place in the log means nothing, so neither would a mark's.
        return self.mark_quiet_ms >= 0 and not self.compacts

    @property
    def roll_ms(self) -> int:
        """The age, in ms of record time, at which a segment is sealed."""
        # The active segment is not compacted. To compact a record before the lag has passed, its
        # segment has to be sealed by then (KIP-354).
        if not self.compacts:
            return self.segment_ms
        return min(self.segment_ms, self.max_compaction_lag_ms)

    def min_insync(self, replication_factor: int) -> int:
        """Return how many replicas of a partition must be in sync."""
        # Capped by the replicas: a broker-wide 2 must not stop writes to topics with one replica.
        usual = INSYNC_USUAL if replication_factor > INSYNC_USUAL else 1
        return max(1, min(self.min_insync_replicas or usual, replication_factor))

    def override(self, configs: Mapping[str, str]) -> TopicConfig:
        """Return these settings with some replaced, by Kafka's names and as text.

        Raises:
            ConfigError: a name is unknown, or a value malformed or out of range.
        """
        for name in configs:
            if name not in TOPIC_SETTINGS:
                raise unknown_setting("topic", name, TOPIC_SETTINGS)
        return replace_settings(self, configs)

    def as_texts(self) -> dict[str, str]:
        """Return every setting by Kafka's name, as text."""
        return texts_of(self)


def is_listed(replicas: str, partition: int, broker: int) -> bool:
    """Whether a list of throttled replicas contains this one."""
    if not replicas:
        return False
    listed = _parse_replicas(replicas)
    return listed is None or (partition, broker) in listed


# Cached: a leader asks for each partition of each follower's fetch.
@lru_cache(maxsize=256)
def _parse_replicas(replicas: str) -> frozenset[tuple[int, int]] | None:
    """Return the replicas of a list, as partition and broker; None for all."""
    if replicas == EVERY:
        return None
    pairs = (each.split(":") for each in replicas.split(","))
    return frozenset((int(partition), int(broker)) for partition, broker in pairs)


TOPIC_SETTINGS: Mapping[str, Setting] = {
    name: each.setting for name, each in declared_settings(TopicConfig).items()
}
"""The settings of a topic by name."""
