"""TopicConfig: the table of settings of topics; a part of `config`, whose rules are its rules.

A setting has a second name here, the broker's: what is set there holds for every topic that does
not say otherwise. Which replicas are throttled is said of a topic alone.
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
    check_table,
    choice,
    declared_settings,
    fraction,
    ignored_settings,
    items,
    replace_settings,
    texts_of,
    truth,
    unknown_setting,
    whole,
    words,
)
from streamlog.records.batch import UNCOMPRESSED_BYTES_MAX
from streamlog.records.compression import GZIP_LEVEL, LZ4_LEVEL, ZSTD_LEVEL

SEGMENT_BYTES_MAX = INT_MAX
"""Positions inside a segment take four bytes in its index."""
SEGMENT_BYTES_MIN = 1024
MESSAGE_BYTES_MAX = 128 * 1024 * 1024
"""No `max.message.bytes` above this: a scan takes a larger batch for damage."""
INDEX_ENTRY_BYTES_MAX = 12
HOUR_MS = 60 * 60 * 1000
DAY_MS = 24 * HOUR_MS
FOR_EVER = -1
CREATE_TIME = "CreateTime"
LOG_APPEND_TIME = "LogAppendTime"
AS_PRODUCED = "producer"
UNCOMPRESSED = "uncompressed"
BY_REPLICAS = 0
"""A number of replicas that follows from how many there are."""
INSYNC_USUAL = 2
"""Of three replicas or more: any one of them can be lost."""
EVERY = "*"
"""Instead of a list of replicas: all of them."""
REPLICAS = Form(
    r"|\*|[0-9]+:[0-9]+(,[0-9]+:[0-9]+)*",
    "* for all replicas, or PARTITION:BROKER with commas between them",
)
FLUSH_NEVER = 2**63 - 1
"""`flush.messages` and `flush.ms` that leave it to the operating system."""


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
            "What becomes of old records: 'delete' removes whole segments by retention.ms and"
            " retention.bytes, 'compact' keeps at least the newest record of each key.",
            broker_name="log.cleanup.policy",
        ),
        ("delete", "compact"),
    )
    retention_ms: int = whole(
        FOR_EVER,
        NamedSetting(
            "retention.ms",
            "How long records are kept under cleanup.policy 'delete', counted from the newest"
            " timestamp in their segment; -1: for ever. Records carry the time of the event, so"
            " that old events are expired as soon as they are written.",
            "ms",
            "log.retention.ms",
        ),
        least=FOR_EVER,
    )
    retention_bytes: int = whole(
        FOR_EVER,
        NamedSetting(
            "retention.bytes",
            "How large a partition grows under cleanup.policy 'delete' before its oldest segments"
            " are removed; -1: without bounds.",
            "bytes",
            "log.retention.bytes",
        ),
        least=FOR_EVER,
    )
    file_delete_delay_ms: int = whole(
        60_000,
        NamedSetting(
            "file.delete.delay.ms",
            "How long the files of a removed segment stay on disk, under another name, for those"
            " who are reading them.",
            "ms",
            "log.segment.delete.delay.ms",
        ),
    )
    segment_bytes: int = whole(
        1024 * 1024 * 1024,
        NamedSetting(
            "segment.bytes",
            "A segment file that would grow beyond this is sealed first. Segments are what"
            " retention removes.",
            "bytes",
            "log.segment.bytes",
        ),
        least=SEGMENT_BYTES_MIN,
        most=SEGMENT_BYTES_MAX,
    )
    segment_ms: int = whole(
        7 * DAY_MS,
        NamedSetting(
            "segment.ms",
            "A segment is sealed when a record comes that is this much newer than the segment's"
            " first batch, by record timestamps.",
            "ms",
            "log.roll.ms",
        ),
        least=1,
    )
    segment_index_bytes: int = whole(
        10 * 1024 * 1024,
        NamedSetting(
            "segment.index.bytes",
            "A segment is sealed when its index has this size, the most set aside for one.",
            "bytes",
            "log.index.size.max.bytes",
        ),
        least=INDEX_ENTRY_BYTES_MAX,
        most=INT_MAX,
    )
    index_interval_bytes: int = whole(
        4096,
        NamedSetting(
            "index.interval.bytes",
            "Bytes of log from one index entry to the next, at least; holds for segments that are"
            " begun afterwards.",
            "bytes",
            "log.index.interval.bytes",
        ),
        most=INT_MAX,
    )
    max_message_bytes: int = whole(
        1024 * 1024 + 12,
        NamedSetting(
            "max.message.bytes",
            "The largest batch that is taken, as it stands on disk (compressed).",
            "bytes",
            "message.max.bytes",
        ),
        most=MESSAGE_BYTES_MAX,
    )
    max_decompressed_bytes: int = whole(
        64 * 1024 * 1024,
        NamedSetting(
            "max.decompressed.bytes",
            "The most that the records of one batch may take decompressed; a batch that yields"
            " more is refused. Not of Kafka.",
            "bytes",
            "message.max.decompressed.bytes",
        ),
        most=UNCOMPRESSED_BYTES_MAX,
    )
    validate_records: bool = truth(
        NamedSetting(
            "validate.records",
            "Whether every record of a batch is checked before the batch is appended: lengths,"
            " offsets, timestamps, header keys. Without it only the header of a batch is checked,"
            " and a batch that its producer has damaged stops those who read it. Compacted topics"
            " and message.timestamp.before.max.ms need it and have it in any case. Not of Kafka.",
            broker_name="log.validate.records",
        ),
        default=True,
    )
    compression_type: str = choice(
        AS_PRODUCED,
        NamedSetting(
            "compression.type",
            "How batches are compressed on disk. 'producer': as they come. Otherwise those that"
            " come in another way are compressed anew, which takes the broker's time, and have to"
            " fit into max.message.bytes before and after.",
            broker_name="compression.type",
        ),
        (UNCOMPRESSED, "gzip", "snappy", "lz4", "zstd", AS_PRODUCED),
    )
    compression_gzip_level: int = whole(
        GZIP_LEVEL,
        NamedSetting(
            "compression.gzip.level",
            "With compression.type 'gzip': more is smaller and slower.",
            broker_name="compression.gzip.level",
        ),
        least=1,
        most=9,
    )
    compression_lz4_level: int = whole(
        LZ4_LEVEL,
        NamedSetting(
            "compression.lz4.level",
            "With compression.type 'lz4': more is smaller and slower.",
            broker_name="compression.lz4.level",
        ),
        least=1,
        most=17,
    )
    compression_zstd_level: int = whole(
        ZSTD_LEVEL,
        NamedSetting(
            "compression.zstd.level",
            "With compression.type 'zstd': more is smaller and slower, from 10 on by far.",
            broker_name="compression.zstd.level",
        ),
        least=-131_072,
        most=22,
    )
    message_timestamp_type: str = choice(
        CREATE_TIME,
        NamedSetting(
            "message.timestamp.type",
            "CreateTime: records keep the time that their producer gave them. LogAppendTime: they"
            " get the broker's time when they are written.",
            broker_name="log.message.timestamp.type",
        ),
        (CREATE_TIME, LOG_APPEND_TIME),
    )
    message_timestamp_before_max_ms: int = whole(
        LONG_MAX,
        NamedSetting(
            "message.timestamp.before.max.ms",
            "With CreateTime: records that are older than this, by the broker's clock, are refused."
            " Below the default every batch has to be decoded to find out.",
            "ms",
            "log.message.timestamp.before.max.ms",
        ),
    )
    message_timestamp_after_max_ms: int = whole(
        HOUR_MS,
        NamedSetting(
            "message.timestamp.after.max.ms",
            "With CreateTime: records that are further in the future than this, by the broker's"
            " clock, are refused. A record from the future keeps its segment, and what comes after"
            " it, from being expired, and makes what follows late for windows. Without"
            " validate.records the newest timestamp in the header of a batch is judged.",
            "ms",
            "log.message.timestamp.after.max.ms",
        ),
    )
    min_cleanable_dirty_ratio: float = fraction(
        0.5,
        NamedSetting(
            "min.cleanable.dirty.ratio",
            "Under cleanup.policy 'compact': a partition is compacted when more than this part of"
            " it, by bytes, has not been. Less wastes less space and takes more work.",
            broker_name="log.cleaner.min.cleanable.ratio",
        ),
    )
    min_compaction_lag_ms: int = whole(
        0,
        NamedSetting(
            "min.compaction.lag.ms",
            "Under cleanup.policy 'compact': records that are younger are left alone, with those"
            " that follow them.",
            "ms",
            "log.cleaner.min.compaction.lag.ms",
        ),
    )
    max_compaction_lag_ms: int = whole(
        LONG_MAX,
        NamedSetting(
            "max.compaction.lag.ms",
            "Under cleanup.policy 'compact': a partition with records that are older, and have not"
            " been compacted, is compacted whatever its dirty ratio; segments are sealed so early.",
            "ms",
            "log.cleaner.max.compaction.lag.ms",
        ),
        least=1,
    )
    delete_retention_ms: int = whole(
        DAY_MS,
        NamedSetting(
            "delete.retention.ms",
            "Under cleanup.policy 'compact': how long a record that deletes a key stays after the"
            " first compaction that meets it. A reader that begins at the start has to come to the"
            " end within it to see every deletion.",
            "ms",
            "log.cleaner.delete.retention.ms",
        ),
    )
    mark_quiet_ms: int = whole(
        5_000,
        NamedSetting(
            "mark.quiet.ms",
            "How long nothing has to have been appended until the passing of time may be marked in"
            " the log, if a reader's event time waits for it; -1: never. Not of Kafka. Compacted"
            " topics have no marks.",
            "ms",
            "log.mark.quiet.ms",
        ),
        least=-1,
    )
    flush_messages: int = whole(
        FLUSH_NEVER,
        NamedSetting(
            "flush.messages",
            "With flush=os, the record that makes it so many that are not on disk is acknowledged"
            " when they are.",
            broker_name="log.flush.interval.messages",
        ),
        least=1,
    )
    flush_ms: int = whole(
        FLUSH_NEVER,
        NamedSetting(
            "flush.ms",
            "With flush=os, how long a record waits at most until it is brought to disk.",
            "ms",
            "log.flush.interval.ms",
        ),
    )

    min_insync_replicas: int = whole(
        BY_REPLICAS,
        NamedSetting(
            "min.insync.replicas",
            "How many replicas have a record before it counts: with fewer in sync acks=all is"
            " refused, and consumers see nothing new. Never more than there are replicas; 0: 2 of 3"
            " or more, else 1.",
            broker_name="min.insync.replicas",
        ),
        most=INT_MAX,
    )
    unclean_leader_election: bool = truth(
        NamedSetting(
            "unclean.leader.election.enable",
            "Whether a replica that may lack acknowledged records leads if no other one lives:"
            " records are lost for the sake of new ones.",
            broker_name="unclean.leader.election.enable",
        ),
        default=False,
    )
    leader_throttled_replicas: str = items(
        "",
        NamedSetting(
            "leader.replication.throttled.replicas",
            "Replicas of which followers that are not in sync fetch no more than the broker's"
            " leader.replication.throttled.rate, while they lead.",
        ),
        REPLICAS,
    )
    follower_throttled_replicas: str = items(
        "",
        NamedSetting(
            "follower.replication.throttled.replicas",
            "Replicas that fetch no more than the broker's follower.replication.throttled.rate,"
            " while they are not in sync.",
        ),
        REPLICAS,
    )

    preallocate: bool = truth(
        NamedSetting(
            "preallocate",
            ignored_settings("segments grow as they are written"),
            broker_name="log.preallocate",
        ),
        default=False,
    )
    segment_jitter_ms: int = whole(
        0,
        NamedSetting(
            "segment.jitter.ms",
            ignored_settings("segments are sealed between requests, each by its own first record"),
            "ms",
            broker_name="log.roll.jitter.ms",
        ),
    )
    local_retention_bytes: int = whole(
        -2,
        NamedSetting(
            "local.retention.bytes",
            ignored_settings("there is no remote storage"),
            "bytes",
            broker_name="log.local.retention.bytes",
        ),
        least=-2,
    )
    local_retention_ms: int = whole(
        -2,
        NamedSetting(
            "local.retention.ms",
            ignored_settings("there is no remote storage"),
            "ms",
            broker_name="log.local.retention.ms",
        ),
        least=-2,
    )
    remote_storage_enable: str = choice(
        "false",
        NamedSetting("remote.storage.enable", "Only false: there is no remote storage."),
        ("false",),
    )
    remote_log_copy_disable: bool = truth(
        NamedSetting("remote.log.copy.disable", ignored_settings("there is no remote storage")),
        default=False,
    )
    remote_log_delete_on_disable: bool = truth(
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
        return "delete" in self.cleanup_policy.split(",")

    @property
    def compacts(self) -> bool:
        """Whether older records of a key may go."""
        return "compact" in self.cleanup_policy.split(",")

    @property
    def takes_marks(self) -> bool:
        """Whether the passing of time may be marked."""
        return self.mark_quiet_ms >= 0 and not self.compacts

    @property
    def roll_ms(self) -> int:
        """After how long a segment is sealed."""
        if not self.compacts:
            return self.segment_ms
        return min(self.segment_ms, self.max_compaction_lag_ms)

    def min_insync(self, replication_factor: int) -> int:
        """How many replicas of a partition with so many have to be in sync."""
        usual = INSYNC_USUAL if replication_factor > INSYNC_USUAL else 1
        return max(1, min(self.min_insync_replicas or usual, replication_factor))

    def overridden(self, configs: Mapping[str, str]) -> TopicConfig:
        """These settings with some replaced, given by Kafka's names and as text.

        Raises:
            ConfigError: a name is unknown, or a value malformed or out of range.
        """
        for name in configs:
            if name not in TOPIC_SETTINGS:
                raise unknown_setting("topic", name, TOPIC_SETTINGS)
        return replace_settings(self, configs)

    def described(self) -> dict[str, str]:
        """Every setting by Kafka's name, as text."""
        return texts_of(self)


def is_listed(replicas: str, partition: int, broker: int) -> bool:
    """Whether a list of throttled replicas has this one."""
    if not replicas:
        return False
    listed = _parse_replicas(replicas)
    return listed is None or (partition, broker) in listed


@lru_cache(maxsize=256)
def _parse_replicas(replicas: str) -> frozenset[tuple[int, int]] | None:
    """The replicas of a list, as partition and broker; None if they are all."""
    if replicas == EVERY:
        return None
    pairs = (each.split(":") for each in replicas.split(","))
    return frozenset((int(partition), int(broker)) for partition, broker in pairs)


TOPIC_SETTINGS: Mapping[str, Setting] = {
    name: each.setting for name, each in declared_settings(TopicConfig).items()
}
"""The settings of a topic, by name."""
