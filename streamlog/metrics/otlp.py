"""OTLP: metrics in OpenTelemetry's protobuf form (`MetricsData` v1), as clients push them.

The enums have the numbers of the fields, for this decoder and for the encoder of our own clients.

Rules of this module: it reads bytes from outside. Its nesting is that of the schema, fields that it
does not know are skipped, and `FIELDS_MAX`, `POINTS_MAX`, `ATTRIBUTES_MAX` and `TEXT_CHARS_MAX`
bound its time and memory; the time between two steps of `decode_steps` is bounded by `STEP_FIELDS`
and `POINT_FIELDS_MAX`. It keeps numbers (gauges and sums) and histograms as count and sum, which
is everything that Kafka's clients measure; exponential histograms, summaries and exemplars are
skipped.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, TypeAlias

import msgspec

from streamlog.errors import CorruptData, DecompressedTooLarge

FIELDS_MAX: Final = 100_000
"""The most protobuf fields that are read of one message."""
STEP_FIELDS: Final = 1_000
"""The fields after which a step ends: about a millisecond."""
POINT_FIELDS_MAX: Final = 1_000
"""The most fields of one point with its attributes, or of a resource."""
POINTS_MAX: Final = 5_000
"""The most data points of one message."""
ATTRIBUTES_MAX: Final = 16
"""Attributes of one point or of the resource; further ones are left out."""
TEXT_CHARS_MAX: Final = 255
"""The length of names and of texts of attributes; longer ones are cut off."""


class Wire(IntEnum):
    """How the value of a field is written."""

    VARINT = 0
    FIXED64 = 1
    BYTES = 2
    FIXED32 = 5


class MetricsDataField(IntEnum):
    """Fields of `MetricsData`, the whole message."""

    RESOURCE_METRICS = 1


class ResourceMetricsField(IntEnum):
    """Fields of `ResourceMetrics`: what one resource, here one client, reports."""

    RESOURCE = 1
    SCOPE_METRICS = 2


class ResourceField(IntEnum):
    """Fields of `Resource`."""

    ATTRIBUTES = 1


class ScopeMetricsField(IntEnum):
    """Fields of `ScopeMetrics`: the metrics of one library."""

    METRICS = 2


class MetricField(IntEnum):
    """Fields of `Metric`: its name, and its data by kind."""

    NAME = 1
    DESCRIPTION = 2
    UNIT = 3
    GAUGE = 5
    SUM = 7
    HISTOGRAM = 9


class DataField(IntEnum):
    """Fields of `Gauge`, `Sum` and `Histogram`; a gauge has points only."""

    POINTS = 1
    TEMPORALITY = 2
    IS_MONOTONIC = 3


class NumberField(IntEnum):
    """Fields of `NumberDataPoint`."""

    START_NS = 2
    TIME_NS = 3
    AS_DOUBLE = 4
    AS_INT = 6
    ATTRIBUTES = 7


class HistogramField(IntEnum):
    """Fields of `HistogramDataPoint`."""

    START_NS = 2
    TIME_NS = 3
    COUNT = 4
    SUM = 5
    BUCKET_COUNTS = 6
    BOUNDS = 7
    ATTRIBUTES = 9


class KeyValueField(IntEnum):
    """Fields of `KeyValue`, an attribute."""

    KEY = 1
    VALUE = 2


class AnyValueField(IntEnum):
    """Fields of `AnyValue`; exactly one is set."""

    STRING = 1
    BOOL = 2
    INT = 3
    DOUBLE = 4


class Temporality(IntEnum):
    """What a sum counts from: the last report, or the start."""

    UNSPECIFIED = 0
    DELTA = 1
    CUMULATIVE = 2


Attributes: TypeAlias = tuple[tuple[str, str], ...]
"""Names and texts of a point or of a resource, in the order in which they were sent."""


class Point(msgspec.Struct, frozen=True):
    """One number of a metric."""

    name: str
    """The name of the metric, such as `org.apache.kafka.producer.record.error.total`."""
    attributes: Attributes
    value: float
    is_sum: bool = False
    """Whether it counts something; else it is a gauge."""
    is_monotonic: bool = False
    """Whether a sum only grows."""
    is_delta: bool = False
    """Whether a sum counts from the last report on, not from the start."""


@dataclass(slots=True)
class MetricsData:
    """What one message says."""

    points: list[Point] = field(default_factory=list)
    resource: Attributes = ()
    """The attributes of the last resource: a client is one."""
    skipped: int = 0
    """Metrics of kinds that are not read."""


Span: TypeAlias = tuple[int, int]
"""Begin and end of bytes within the message."""
# Plain numbers: a comparison with a member of an enum costs as much as the rest of a field.
_VARINT, _FIXED64, _BYTES, _FIXED32 = (int(each) for each in Wire)
_DOUBLE: Final = struct.Struct("<d")
_SFIXED: Final = struct.Struct("<q")
_NUMBERS: Final = {int(NumberField.AS_DOUBLE): _DOUBLE, int(NumberField.AS_INT): _SFIXED}
_TOTALS: Final = {int(HistogramField.COUNT): _SFIXED, int(HistogramField.SUM): _DOUBLE}
"""The fields of a point that are read, with their forms."""
_VARINT_BITS_MAX: Final = 70
_MORE: Final = 0x80
"""The bit of a byte of a varint that says that another byte follows."""
_INT64_SIGN: Final = 1 << 63


def decode_metrics(data: bytes) -> MetricsData:
    """Read a `MetricsData` message.

    Raises:
        CorruptData: it is malformed.
        DecompressedTooLarge: as `decode_steps`.
    """
    steps = decode_steps(data)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: MetricsData = end.value
            return found


def decode_steps(data: bytes) -> Generator[None, None, MetricsData]:
    """Read a `MetricsData` message in short steps, between which an event loop may serve others.

    Raises:
        CorruptData: it is malformed.
        DecompressedTooLarge: it has more than `FIELDS_MAX` fields or `POINTS_MAX` points, or a
            point has more than `POINT_FIELDS_MAX` fields.
    """
    try:
        return (yield from _Decoder(data).decode())
    except (IndexError, struct.error, UnicodeDecodeError) as error:
        raise CorruptData(f"metrics of {len(data)} bytes are no OTLP MetricsData") from error


class _Decoder:
    """Reads one message, and counts what it has read."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._fields_left = FIELDS_MAX
        self._step_ends = FIELDS_MAX - STEP_FIELDS
        """The step ends when this number of fields is left."""
        self._fields_left_min = 0
        """How many fields have to be left when the present point or resource ends."""
        self._found = MetricsData()

    def decode(self) -> Generator[None, None, MetricsData]:
        """Return what the message says."""
        whole = (0, len(self._data))
        # Fields may come in any order, and more than once: protobuf says that a later one adds to a
        # message. So each level is walked with its own loop, and nothing is expected to come first.
        for number, _, group in self._fields(whole):
            if self._is_step_over():
                yield
            if number == MetricsDataField.RESOURCE_METRICS and isinstance(group, tuple):
                yield from self._read_group(group)
        return self._found

    def _read_group(self, group: Span) -> Iterator[None]:
        """Read what one resource reports."""
        for number, _, span in self._fields(group):
            if self._is_step_over():
                yield
            if not isinstance(span, tuple):
                continue
            if number == ResourceMetricsField.RESOURCE:
                self._found.resource = self._read_resource(span)
            elif number == ResourceMetricsField.SCOPE_METRICS:
                yield from self._read_scope(span)

    def _read_scope(self, span: Span) -> Iterator[None]:
        for number, _, metric in self._fields(span):
            if self._is_step_over():
                yield
            if number == ScopeMetricsField.METRICS and isinstance(metric, tuple):
                yield from self._read_metric(metric)

    def _read_resource(self, span: Span) -> Attributes:
        self._begin_point()
        spans = [
            value
            for number, _, value in self._fields(span)
            if number == ResourceField.ATTRIBUTES and isinstance(value, tuple)
        ]
        found = self._attributes(spans)
        self._end_point()
        return found

    def _is_step_over(self) -> bool:
        """Whether the step ends here; the next one begins."""
        if self._fields_left > self._step_ends:
            return False
        self._step_ends = self._fields_left - STEP_FIELDS
        return True

    def _begin_point(self) -> None:
        # A point is read without a pause: generators at each level below would cost every point
        # more than its fields do. So its own bound has to be that of a step.
        self._fields_left_min = max(self._fields_left - POINT_FIELDS_MAX, 0)

    def _end_point(self) -> None:
        self._fields_left_min = 0

    def _read_metric(self, span: Span) -> Iterator[None]:
        names = MetricField
        name = ""
        kinds: list[tuple[int, Span]] = []
        for number, wire, value in self._fields(span):
            if self._is_step_over():
                yield
            if wire != _BYTES or not isinstance(value, tuple):
                continue
            if number == names.NAME:
                name = self._text(value)
            # Kept until the loop has ended: the name may come after the data.
            elif number > names.UNIT:
                kinds.append((number, value))
        if not name:
            raise CorruptData("a metric has no name")
        for number, data in kinds:
            if number in (names.GAUGE, names.SUM):
                yield from self._read_numbers(name, data, is_sum=number == names.SUM)
            elif number == names.HISTOGRAM:
                yield from self._read_histograms(name, data)
            else:
                self._found.skipped += 1

    def _read_numbers(self, name: str, span: Span, *, is_sum: bool) -> Iterator[None]:
        points, temporality, is_monotonic = yield from self._data_of(span)
        for each in points:
            if self._is_step_over():
                yield
            values, attributes = self._point(each, _NUMBERS, NumberField.ATTRIBUTES)
            # A point may say that there was no value.
            for value in values.values():
                self._add(
                    Point(
                        name,
                        attributes,
                        value,
                        is_sum=is_sum,
                        is_monotonic=is_sum and is_monotonic,
                        is_delta=is_sum and temporality == Temporality.DELTA,
                    )
                )

    def _read_histograms(self, name: str, span: Span) -> Iterator[None]:
        points, temporality, _ = yield from self._data_of(span)
        is_delta = temporality == Temporality.DELTA
        for each in points:
            if self._is_step_over():
                yield
            # A rate of the sum over a rate of the count is the mean, which is what dashboards of
            # clients show. Buckets would multiply the series of each client by their number.
            values, attributes = self._point(each, _TOTALS, HistogramField.ATTRIBUTES)
            for number, value in values.items():
                whole = name + (".count" if number == HistogramField.COUNT else ".sum")
                self._add(
                    Point(
                        whole,
                        attributes,
                        value,
                        is_sum=True,
                        is_monotonic=True,
                        is_delta=is_delta,
                    )
                )

    def _point(
        self, span: Span, forms: Mapping[int, struct.Struct], about: int
    ) -> tuple[dict[int, float], Attributes]:
        """Return the values of a point by field, and its attributes, in the field `about`."""
        values: dict[int, float] = {}
        attributes: list[Span] = []
        self._begin_point()
        for number, wire, read in self._fields(span):
            if isinstance(read, tuple):
                if number == about:
                    attributes.append(read)
            elif wire == _FIXED64 and number in forms:
                values[number] = forms[number].unpack_from(self._data, read)[0]
        described = self._attributes(attributes)
        self._end_point()
        return values, described

    def _add(self, point: Point) -> None:
        # Checked at each point and not at the end: 1 MiB that decompresses to points of 10 bytes
        # would cost a hundred times its size as objects.
        if len(self._found.points) >= POINTS_MAX:
            raise DecompressedTooLarge(f"the metrics have more than {POINTS_MAX} data points")
        self._found.points.append(point)

    def _data_of(self, span: Span) -> Generator[None, None, tuple[list[Span], int, bool]]:
        """Return the points of a gauge, sum or histogram, its temporality, and its monotony."""
        points: list[Span] = []
        temporality, is_monotonic = int(Temporality.UNSPECIFIED), False
        for number, wire, value in self._fields(span):
            if self._is_step_over():
                yield
            if isinstance(value, tuple):
                if number == DataField.POINTS:
                    points.append(value)
            elif wire == _VARINT and number == DataField.TEMPORALITY:
                temporality = value
            elif wire == _VARINT and number == DataField.IS_MONOTONIC:
                is_monotonic = bool(value)
        return points, temporality, is_monotonic

    def _attributes(self, spans: list[Span]) -> Attributes:
        found: list[tuple[str, str]] = []
        # Further attributes are left out, and not refused: a client may have labels of its own that
        # are of no use here, and its other numbers are.
        for span in spans[:ATTRIBUTES_MAX]:
            key = text = ""
            for number, _, value in self._fields(span):
                if not isinstance(value, tuple):
                    continue
                if number == KeyValueField.KEY:
                    key = self._text(value)
                elif number == KeyValueField.VALUE:
                    text = self._any_value(value)
            found.append((key, text))
        return tuple(found)

    def _any_value(self, span: Span) -> str:
        """Return a scalar as text; an empty text for lists and other values."""
        text = ""
        for number, wire, value in self._fields(span):
            if isinstance(value, tuple):
                if number == AnyValueField.STRING:
                    text = self._text(value)
            elif wire == _FIXED64 and number == AnyValueField.DOUBLE:
                text = repr(_DOUBLE.unpack_from(self._data, value)[0])
            elif wire == _VARINT and number == AnyValueField.BOOL:
                text = "true" if value else "false"
            elif wire == _VARINT and number == AnyValueField.INT:
                text = str(value - 2 * _INT64_SIGN if value >= _INT64_SIGN else value)
        return text

    def _text(self, span: Span) -> str:
        begin, end = span
        # Four bytes are the most of a character; more would be cut off again.
        cut = min(end, begin + 4 * TEXT_CHARS_MAX)
        # A whole text that is no UTF-8 is malformed. A text that was cut may end within a
        # character, and that is no fault of its sender.
        errors = "strict" if cut == end else "ignore"
        return self._data[begin:cut].decode("utf-8", errors)[:TEXT_CHARS_MAX]

    def _fields(self, span: Span) -> Iterator[tuple[int, int, int | Span]]:
        """Yield number, wire type and value of each field of a message.

        The value of a varint is the number, that of bytes where they are, and that of a fixed-size
        field where it begins.
        """
        data = self._data
        at, end = span
        while at < end:
            # One budget for the whole message: nested messages are walked once by each level, so a
            # bound per level would allow the product of all levels.
            self._fields_left -= 1
            if self._fields_left < self._fields_left_min:
                raise self._too_many_fields()
            tag = data[at]
            at += 1
            # The numbers of all fields here are below 16, so a tag is one byte; the general way is
            # for fields of later versions.
            if tag >= _MORE:
                tag, at = self._varint(at - 1)
            wire = tag & 7
            value: int | Span
            if wire == _BYTES:
                size_bytes = data[at]
                at += 1
                if size_bytes >= _MORE:
                    size_bytes, at = self._varint(at - 1)
                value = (at, at + size_bytes)
                at += size_bytes
            elif wire == _VARINT:
                value, at = self._varint(at)
            elif wire == _FIXED64:
                value = at
                at += 8
            elif wire == _FIXED32:
                value = at
                at += 4
            else:
                raise CorruptData(f"the metrics have a field of the unknown wire type {wire}")
            # Python's slices forgive an end behind the data, so this is the check. 1. A field says
            # that it has 2^63 bytes. 2. `at` is far behind `end`. 3. Nothing was allocated for it.
            if at > end:
                raise CorruptData("a field of the metrics ends behind its message")
            yield tag >> 3, wire, value

    def _too_many_fields(self) -> DecompressedTooLarge:
        if self._fields_left < 0:
            return DecompressedTooLarge(f"the metrics have more than {FIELDS_MAX} fields")
        return DecompressedTooLarge(
            f"a point or resource of the metrics has more than {POINT_FIELDS_MAX} fields"
        )

    def _varint(self, at: int) -> tuple[int, int]:
        """Return a varint, and where the next value begins."""
        data = self._data
        value = 0
        for shift in range(0, _VARINT_BITS_MAX, 7):
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < _MORE:
                # The tenth byte carries bits beyond 64, which protobuf says to drop.
                return value & (2 * _INT64_SIGN - 1), at
        raise CorruptData("a varint of the metrics is longer than 10 bytes")
