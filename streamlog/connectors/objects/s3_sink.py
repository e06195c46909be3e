"""S3 sink: the settings of Confluent's S3SinkConnector, as `Objects`.

Directories and names are Confluent's: `topics/orders/partition=0/orders+0+0000000000.json`. A file
has the fields of the values alone. It is repeated after a crash under its name with the same rows,
whichever rule closed it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, date, datetime
from typing import Annotated, ClassVar, Final, Literal, TypeAlias

import msgspec

from streamlog.connect import BadRecord, ConnectError, Flush, Secret, fields_of
from streamlog.connect.java_connectors import JavaConnector, refuse_unless
from streamlog.connectors.objects import Objects
from streamlog.connectors.tables import TableCompression
from streamlog.errors import ConfigError
from streamlog.replace import replace
from streamlog.serdes.erased_types import AnyRecord

Format: TypeAlias = Literal[
    "io.confluent.connect.s3.format.json.JsonFormat",
    "io.confluent.connect.s3.format.parquet.ParquetFormat",
]
Partitioner: TypeAlias = Literal[
    "io.confluent.connect.storage.partitioner.DefaultPartitioner",
    "io.confluent.connect.storage.partitioner.FieldPartitioner",
    "io.confluent.connect.storage.partitioner.TimeBasedPartitioner",
    "io.confluent.connect.storage.partitioner.HourlyPartitioner",
    "io.confluent.connect.storage.partitioner.DailyPartitioner",
]
_PACKAGE: Final = "io.confluent.connect.storage.partitioner."
_DAILY: Final = "'year'=YYYY/'month'=MM/'day'=dd"
_TIME_PATHS: Final = {"HourlyPartitioner": f"{_DAILY}/'hour'=HH", "DailyPartitioner": _DAILY}
_NEVER: Final = "36500d"
FILE_BYTES: Final = 64 * 1024 * 1024
_HOUR_MS: Final = 3_600_000
_LETTERS: Final = {
    "Y": ("%Y", 4, 24 * _HOUR_MS),
    "y": ("%Y", 4, 24 * _HOUR_MS),
    "M": ("%m", 2, 24 * _HOUR_MS),
    "d": ("%d", 2, 24 * _HOUR_MS),
    "H": ("%H", 2, _HOUR_MS),
    "m": ("%M", 2, 60_000),
}
"""Letters of Joda's formats: strftime's, how many of them, and the milliseconds of one, or of a
day."""
_JODA: Final = re.compile(r"'((?:[^']|'')*)'|([A-Za-z])\2*|([^A-Za-z']+)")


class JavaLayoutObjects(Objects, frozen=True, kw_only=True):
    """`Objects` with Confluent's names of files, which have no columns but the values' fields."""

    has_coordinates: ClassVar[bool] = False

    @property
    def suffix(self) -> str:
        """The end of a file's name."""
        compression = self.used_compression
        if self.format == "parquet":
            return ".parquet" if compression == "none" else f".{compression}.parquet"
        return ".json.gz" if compression == "gzip" else ".json"


class S3SinkConnector(JavaConnector, frozen=True, kw_only=True):
    """`io.confluent.connect.s3.S3SinkConnector`.

    Attributes:
        s3_bucket_name: the bucket.
        s3_region: its region.
        store_url: the address of the store, if it is not AWS's.
        storage_class: only S3Storage.
        format_class: JsonFormat or ParquetFormat.
        flush_size: how many records of a partition a file has at most; 64 MiB of keys and values
            end it as well.
        rotate_interval_ms: at which multiples of record time a file ends; -1 for never. Files are
            equal in every run. Confluent's begin to count at the first record of a file.
        rotate_schedule_interval_ms: how long a file stays open by the clock; -1 for no limit.
        topics_dir: the directory above those of the topics.
        file_delim: only "+".
        directory_delim: only "/".
        filename_offset_zero_pad_width: only 10.
        partitioner_class: which directories there are below a topic's.
        partition_field_name: the fields of FieldPartitioner.
        partition_duration_ms: of TimeBasedPartitioner; `path.format` must not be finer.
        path_format: the directories of TimeBasedPartitioner, of YYYY, MM, dd, HH, mm and texts.
        locale: accepted; no name of a directory depends on it.
        timezone: only "UTC".
        timestamp_extractor: "Record" or "RecordField" for directories by time; the clock would name
            other directories for a flush that is repeated.
        timestamp_field: the field of "RecordField": milliseconds since 1970, a time or ISO 8601.
        schema_compatibility: "NONE"; others for JsonFormat, whose files have no schema.
        aws_access_key_id: the access key; by default from the environment.
        aws_secret_access_key: its secret.
        s3_credentials_provider_class: only the default: the environment has the credentials.
        s3_compression_type: "none" or "gzip", for JsonFormat.
        parquet_codec: of ParquetFormat.
        s3_path_style_access_enabled: whether the bucket is in the path rather than the host.
        s3_part_size: accepted; files are sent by obstore.
        s3_part_retries: accepted; a flush that fails is repeated without end.
        s3_retry_backoff_ms: accepted; the pauses grow by themselves.
        behavior_on_null_values: "fail" fails the record, "ignore" leaves it out.
        store_kafka_keys: only "false".
        store_kafka_headers: only "false".
        schema_generator_class: accepted; it is of Hive's tables.
        avro_codec: accepted; there is no AvroFormat.
        enhanced_avro_schema_support: accepted; there is no AvroFormat.
        connect_meta_data: accepted; there is no AvroFormat.
    """

    stands_for: ClassVar[type[Objects]] = Objects
    named_here: ClassVar[Mapping[str, str]] = {
        "url": "s3.bucket.name", "path": "path.format", "flush.records": "flush.size",
        "compression": "s3.compression.type",
    }  # fmt: skip

    s3_bucket_name: str
    s3_region: str = "us-west-2"
    store_url: str = ""
    storage_class: Literal["io.confluent.connect.s3.storage.S3Storage"] = (
        "io.confluent.connect.s3.storage.S3Storage"
    )
    format_class: Format
    flush_size: Annotated[int, msgspec.Meta(ge=1)]
    rotate_interval_ms: Annotated[int, msgspec.Meta(ge=-1)] = -1
    rotate_schedule_interval_ms: Annotated[int, msgspec.Meta(ge=-1)] = -1
    topics_dir: str = "topics"
    file_delim: Literal["+"] = "+"
    directory_delim: Literal["/"] = "/"
    filename_offset_zero_pad_width: Literal[10] = 10
    partitioner_class: Partitioner = "io.confluent.connect.storage.partitioner.DefaultPartitioner"
    partition_field_name: tuple[str, ...] = ()
    partition_duration_ms: Annotated[int, msgspec.Meta(ge=-1)] = -1
    path_format: str = ""
    locale: str = ""
    timezone: Literal["UTC", "Etc/UTC", "GMT"] | None = None
    timestamp_extractor: Literal["Wallclock", "Record", "RecordField"] = "Wallclock"
    timestamp_field: str = "timestamp"
    schema_compatibility: Literal["NONE", "BACKWARD", "FORWARD", "FULL"] = "NONE"
    aws_access_key_id: str | None = None
    aws_secret_access_key: Secret | None = None
    s3_credentials_provider_class: Literal[
        "com.amazonaws.auth.DefaultAWSCredentialsProviderChain"
    ] = "com.amazonaws.auth.DefaultAWSCredentialsProviderChain"
    s3_compression_type: Literal["none", "gzip"] = "none"
    parquet_codec: Literal["snappy", "none", "gzip", "zstd"] = "snappy"
    s3_path_style_access_enabled: bool = True
    s3_part_size: Annotated[int, msgspec.Meta(ge=1)] = 26_214_400
    s3_part_retries: Annotated[int, msgspec.Meta(ge=0)] = 3
    s3_retry_backoff_ms: Annotated[int, msgspec.Meta(ge=0)] = 200
    behavior_on_null_values: Literal["fail", "ignore"] = "fail"
    store_kafka_keys: Literal["false"] = "false"
    store_kafka_headers: Literal["false"] = "false"
    schema_generator_class: str = ""
    avro_codec: str = "null"
    enhanced_avro_schema_support: bool = False
    connect_meta_data: bool = True

    @property
    def _is_json(self) -> bool:
        return self.format_class.endswith("JsonFormat")

    @property
    def _partitioner(self) -> str:
        return self.partitioner_class.removeprefix(_PACKAGE)

    def check(self) -> None:
        """Refuse settings that do not go together.

        Raises:
            ConfigError: the message names the setting.
        """
        refuse_unless(bool(self.s3_bucket_name), "s3.bucket.name", "is empty: name the bucket")
        is_below = ".." not in self.topics_dir.split("/")
        refuse_unless(is_below, "topics.dir", "leads out of the bucket: leave .. out")
        is_compatible = self.schema_compatibility == "NONE" or self._is_json
        refuse_unless(is_compatible, "schema.compatibility", "Parquet files have the columns of "
                      "all their rows: write NONE")  # fmt: skip
        is_plain = self._is_json or self.s3_compression_type == "none"
        refuse_unless(is_plain, "s3.compression.type", "is for JsonFormat: set parquet.codec")
        by_field = self._partitioner == "FieldPartitioner"
        why = "name the fields" if by_field else f"{self._partitioner} has none"
        refuse_unless(by_field is bool(self.partition_field_name), "partition.field.name", why)
        if self._has_times:
            self._check_times()
        has_pair = (self.aws_access_key_id is None) == (self.aws_secret_access_key is None)
        refuse_unless(has_pair, "aws.access.key.id", "needs aws.secret.access.key, and vice versa")
        super().check()

    @property
    def _has_times(self) -> bool:
        return self._partitioner not in {"DefaultPartitioner", "FieldPartitioner"}

    def _check_times(self) -> None:
        refuse_unless(bool(self.timezone), "timezone", "set it to UTC, the only one")
        refuse_unless(
            self.timestamp_extractor != "Wallclock", "timestamp.extractor",
            "set it to Record or RecordField: by the clock of the worker, its default, a flush that"
            " is repeated would be in other directories",
        )  # fmt: skip
        if self._partitioner != "TimeBasedPartitioner":
            return
        refuse_unless(bool(self.path_format), "path.format", "is missing: TimeBasedPartitioner "
                      "needs it")  # fmt: skip
        finest_ms = joda_path(self.path_format)[1]
        duration_ms = self.partition_duration_ms
        is_whole = duration_ms > 0 and finest_ms % duration_ms == 0
        refuse_unless(is_whole, "partition.duration.ms", f"has to be {finest_ms}, the milliseconds "
                      "of the finest part of path.format")  # fmt: skip

    def connector(self) -> Objects:
        """Return the sink."""
        # With `topics.dir=` empty, topics lie at the top of the bucket.
        below = f"/{self.topics_dir.strip('/')}" if self.topics_dir.strip("/") else ""
        # obstore's names; what is not here comes from the environment, as AWS's own tools take it.
        options = {"region": self.s3_region}
        if self.store_url:
            options["endpoint"] = self.store_url
        if not self.s3_path_style_access_enabled:
            options["virtual_hosted_style_request"] = "true"
        if self.aws_access_key_id is not None:
            options["access_key_id"] = self.aws_access_key_id
        codec: TableCompression = self.s3_compression_type if self._is_json else self.parquet_codec
        return JavaLayoutObjects(
            url=f"s3://{self.s3_bucket_name}{below}",
            format="jsonl" if self._is_json else "parquet",
            path=f"{{topic}}/{self._path()}/",
            compression=codec,
            options=options,
            secret=self.aws_secret_access_key,
            flush=self._flush(),
        )

    def _path(self) -> str:
        if self._partitioner == "DefaultPartitioner":
            return "partition={partition}"
        if self._partitioner == "FieldPartitioner":
            names = self.partition_field_name
            return "/".join(f"{_literal(name)}={{value.{name}}}" for name in names)
        return joda_path(_TIME_PATHS.get(self._partitioner, self.path_format))[0]

    def _flush(self) -> Flush:
        # Without a rule of time, a file stays open until it has its records, as it does there.
        waits = [self.rotate_schedule_interval_ms]
        # Record time cuts equally in every run; the clock's does not, and a range holds either.
        by_time = self.timestamp_extractor != "Wallclock" and self.rotate_interval_ms > 0
        waits += [] if by_time else [self.rotate_interval_ms]
        wait_ms = min((each for each in waits if each > 0), default=0)
        return Flush(
            records=self.flush_size,
            size_bytes=FILE_BYTES,
            every=f"{wait_ms}ms" if wait_ms else _NEVER,
            stream_time=f"{self.rotate_interval_ms}ms" if by_time else None,
        )

    def adapt(self, record: AnyRecord) -> AnyRecord | None:
        """Return a record with the time that names its directory; None if it is left out.

        Raises:
            ConnectError: the value is null, or lacks the field of its time.
        """
        if record.value is None:
            if self.behavior_on_null_values == "ignore":
                return None
            raise ConnectError(
                "the value is null: behavior.on.null.values=ignore leaves such records out"
            )
        if not self._has_times or self.timestamp_extractor != "RecordField":
            return record
        found = fields_of(record.value).get(self.timestamp_field)
        return replace(record, timestamp=_moment(self.timestamp_field, found))


def joda_path(text: str) -> tuple[str, int]:
    """Return a path of Joda's as one of `Objects`, and the milliseconds of its finest part.

    Raises:
        ConfigError: it has letters that name no directory by time here.
    """
    parts: list[str] = []
    finest_ms, end = 24 * _HOUR_MS, 0
    for found in _JODA.finditer(text):
        quoted, letter, other = found.groups()
        # What the expression passes over is a quote that has no other.
        if found.start() != end:
            break
        end = found.end()
        if letter is None:
            text_of = other if quoted is None else quoted.replace("''", "'") or "'"
            parts.append(_literal(text_of))
            continue
        code, count, unit_ms = _LETTERS.get(letter, ("", 0, 0))
        if len(found[0]) != count:
            raise ConfigError(
                f"path.format={text!r}: {found[0]} is unknown; there are YYYY, MM, dd, HH, mm, and "
                "texts in '...'"
            )
        # A month counts as days, since a duration in milliseconds can't say how many it has.
        finest_ms = min(finest_ms, unit_ms)
        parts.append(f"{{timestamp:{code}}}")
    if end != len(text):
        raise ConfigError(f"path.format={text!r} has a quote without an end")
    return "".join(parts).strip("/"), finest_ms


def _literal(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def _moment(name: str, value: object) -> datetime:
    """Return the time of a field, as Confluent's RecordField reads it."""
    if isinstance(value, datetime):
        return value if value.tzinfo else value.replace(tzinfo=UTC)
    # A date of Connect is a day, which begins at midnight in UTC.
    if isinstance(value, date):
        return datetime(value.year, value.month, value.day, tzinfo=UTC)
    try:
        if isinstance(value, int) and not isinstance(value, bool):
            return datetime.fromtimestamp(value / 1000, UTC)
        moment = datetime.fromisoformat(str(value))
    except (ValueError, OverflowError, OSError):
        raise BadRecord(f"timestamp.field={name}: {type(value).__name__} is no time") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
