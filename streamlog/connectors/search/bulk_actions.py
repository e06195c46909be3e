"""Bulk actions: what a record is in a request to `_bulk`, and what its answer means.

An action is a line of JSON with index, id and version, and for all but deletions a second one with
the document. Versions are the log's offsets, by `external_gte`: the server takes an equal or higher
one, and refuses a lower one as a conflict, which shows that it has a newer document already.

Rule: pure, and no failure is lost: each action of a request is done, to be sent again, or bad.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC
from string import Formatter
from typing import Final, Literal, NamedTuple, TypeAlias
from uuid import UUID

import msgspec

from streamlog.connect import BadRecord, Batch, ConnectError, Refused, fields_of
from streamlog.errors import ConfigError
from streamlog.record import Record

DocumentId: TypeAlias = Literal["key", "offset"]
OnTombstone: TypeAlias = Literal["delete", "ignore", "fail"]
DocumentForm: TypeAlias = Literal["fields", "json"]
AnyBatch: TypeAlias = Batch[object, object]
AnyRow: TypeAlias = Record[object, object]

TIMESTAMP_FIELD: Final = "@timestamp"
"""The time of a document, as data streams need it and Kibana shows it."""
ID_BYTES_MAX: Final = 512
"""The longest id of a document; a longer one would fail the whole request."""
INDEX_BYTES_MAX: Final = 255
REASON_SHOWN: Final = 500
"""Characters of a server's reason in the text of an error."""


def _fields(value: object) -> object:
    try:
        return dict(fields_of(value))
    except BadRecord as error:
        raise TypeError(str(error)) from error


_ENCODER = msgspec.json.Encoder(decimal_format="number", enc_hook=_fields)
_KEYS = msgspec.json.Encoder(order="sorted", enc_hook=_fields)
_UNENCODABLE = (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError)
"""What the encoder raises for values that JSON has no form for."""
_BAD_CHARACTER = re.compile(r'[\\/*?"<>|,#:\s]')
_BAD_NAME = re.compile(r"[-_+].*|\.\.?")
"""What both servers refuse in names of indexes."""
_SETTING_FAULTS: Final = frozenset({"index_closed_exception", "invalid_index_name_exception"})
"""Errors with status 400 that blame the index, and not the document."""
_NEEDS_CREATE: Final = "op_type of create"
"""In the reason of both servers when a data stream gets anything but new documents."""
_NEWER = re.compile(r"current version \[(\d+)\] is higher")


class IndexName:
    """The name of a record's index, by a template.

    Args:
        template: a text with `{topic}` and `{timestamp:FORMAT}`, the latter in UTC.

    Attributes:
        has_time: whether records of one topic have several indexes.

    Raises:
        ConfigError: the template names something else, or characters that no index may have.
    """

    def __init__(self, template: str) -> None:
        self._template = template
        try:
            parts = [*Formatter().parse(template)]
        except ValueError as error:
            raise ConfigError(f"index={template!r} is no template: {error}") from error
        named = [(name, spec) for _, name, spec, _ in parts if name is not None]
        for name, spec in named:
            if (name, bool(spec)) not in {("topic", False), ("timestamp", True)}:
                raise ConfigError(
                    f"index={template!r}: {{{name}}} is unknown; there are {{topic}} and "
                    "{timestamp:%Y.%m.%d}"
                )
        if any(conversion for *_, conversion in parts):
            raise ConfigError(f"index={template!r}: conversions such as !r are unknown")
        if not template or any(_BAD_CHARACTER.search(text) for text, *_ in parts):
            raise ConfigError(
                f"index={template!r} is no name of an index: write one without spaces and without"
                ' \\ / * ? " < > | , # :'
            )
        self.has_time = any(name == "timestamp" for name, _ in named)
        self._known: dict[str, str] = {}

    def of(self, record: AnyRow) -> str:
        """Return the index of a record.

        Raises:
            ConfigError: the topic makes no name of an index.
        """
        if self.has_time:
            return self._made(record)
        # One name for a topic: made once, as formatting costs more than the rest of an action.
        found = self._known.get(record.topic)
        if found is None:
            found = self._known[record.topic] = self._made(record)
        return found

    def _made(self, record: AnyRow) -> str:
        time = record.timestamp.astimezone(UTC)
        name = self._template.format(topic=record.topic, timestamp=time).lower()
        is_bad = _BAD_CHARACTER.search(name) or _BAD_NAME.fullmatch(name)
        if is_bad or len(name.encode()) > INDEX_BYTES_MAX:
            raise ConfigError(
                f"index={self._template!r} makes {name!r} of the topic {record.topic}, which no "
                "index can have as its name: set index"
            )
        return name


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkRules:
    """What is made of a record; see the settings of `Search`."""

    index: IndexName
    creates: bool
    """Whether documents are only created, as in a data stream."""
    ids: DocumentId
    tombstones: OnTombstone
    document: DocumentForm
    timestamp_field: str | None


class BulkAction(NamedTuple):
    """One record in a request."""

    at: int
    """Its index in the batch."""
    offset: int
    target: tuple[str, str]
    """Index and id of its document."""
    lines: bytes
    """What is sent, with a line end behind each line."""


@dataclass(slots=True)
class BulkPlan:
    """The actions of a batch, in order."""

    actions: list[BulkAction] = field(default_factory=list)
    bad: dict[int, str] = field(default_factory=dict)
    """Records that have no document, by their index in the batch, with the reason."""
    ignored: int = 0
    """Tombstones that are left out."""


def plan_actions(rules: BulkRules, batch: AnyBatch) -> BulkPlan:
    """Return what a batch is in requests.

    Raises:
        ConfigError: a record's topic makes no name of an index.
    """
    plan = BulkPlan()
    needs_raw = rules.document == "json"
    # Not asked for without need: a batch that was decoded may have no bytes in a test.
    values = [value for _, value in batch.raw()] if needs_raw else [None] * len(batch)
    for at, (record, raw) in enumerate(zip(batch.records, values, strict=True)):
        try:
            action = _action(rules, at, record, raw)
        except BadRecord as error:
            plan.bad[at] = str(error)
            continue
        if action is None:
            plan.ignored += 1
        else:
            plan.actions.append(action)
    return plan


def _action(rules: BulkRules, at: int, record: AnyRow, raw: bytes | None) -> BulkAction | None:
    is_tombstone = record.value is None and raw is None
    if is_tombstone and rules.tombstones == "fail":
        raise BadRecord("the record has no value, and tombstones is 'fail'")
    # Without a key there is no document that it could delete.
    if is_tombstone and (rules.tombstones == "ignore" or record.key is None):
        return None
    target = rules.index.of(record), _id(rules, record)
    head: dict[str, object] = {"_index": target[0], "_id": target[1]}
    if not rules.creates:
        # "create" takes no version: a second one of an id fails whatever its version.
        head |= {"version": record.offset, "version_type": "external_gte"}
    op = "delete" if is_tombstone else "create" if rules.creates else "index"
    document = b"" if is_tombstone else _document(rules, record, raw) + b"\n"
    lines = _ENCODER.encode({op: head}) + b"\n" + document
    return BulkAction(at, record.offset, target, lines)


def _id(rules: BulkRules, record: AnyRow) -> str:
    if rules.ids == "offset" or record.key is None:
        # As Confluent's connector names them, so that one can take over from the other.
        return f"{record.topic}+{record.partition}+{record.offset}"
    found = _key_text(record.key)
    try:
        size = len(found.encode())
    except UnicodeEncodeError as error:
        raise BadRecord("the key is no Unicode text, which an id has to be") from error
    if not 0 < size <= ID_BYTES_MAX:
        raise BadRecord(f"the key has {size} bytes, and an id has to have 1 to {ID_BYTES_MAX}")
    return found


def _key_text(key: object) -> str:
    match key:
        case str():
            return key
        case bytes():
            try:
                return key.decode()
            except UnicodeDecodeError as error:
                raise BadRecord("the key is bytes that are no text in UTF-8") from error
        case bool():
            return "true" if key else "false"
        case int() | float() | UUID():
            return str(key)
    try:
        # Sorted, so that an equal key is an equal id.
        return _KEYS.encode(key).decode()
    except _UNENCODABLE as error:
        raise BadRecord(f"the key can't be an id: {error}") from error


def _document(rules: BulkRules, record: AnyRow, raw: bytes | None) -> bytes:
    try:
        if rules.document == "json":
            return _given_json(rules, record, raw or b"")
        try:
            fields: Mapping[str, object] = fields_of(record.value)
        except BadRecord:
            fields = {"value": _plain(record.value)}
        return _ENCODER.encode(_with_time(rules, record, fields))
    except _UNENCODABLE as error:
        raise BadRecord(f"the value can't be written as JSON: {error}") from error


def _plain(value: object) -> object:
    # A line of a log is text; what is no text is base64, as JSON has no bytes.
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value
    return value


def _given_json(rules: BulkRules, record: AnyRow, raw: bytes) -> bytes:
    # Decoded one level deep: what is in the fields stays as it is written, numbers included.
    fields = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    if rules.timestamp_field is not None and rules.timestamp_field not in fields:
        time = _ENCODER.encode(record.timestamp.astimezone(UTC))
        raw = _ENCODER.encode({**fields, rules.timestamp_field: msgspec.Raw(time)})
    # A line end inside would end the document.
    return msgspec.json.format(raw, indent=-1) if b"\n" in raw or b"\r" in raw else raw


def _with_time(rules: BulkRules, record: AnyRow, fields: Mapping[str, object]) -> dict[str, object]:
    # A copy: the fields may be those of the record itself.
    found = dict(fields)
    if rules.timestamp_field is not None:
        found.setdefault(rules.timestamp_field, record.timestamp.astimezone(UTC))
    return found


def bodies(actions: Sequence[BulkAction], size_bytes: int) -> Iterator[list[BulkAction]]:
    """Divide actions, in order, into requests of at most so many bytes.

    An action that is larger is alone in its request.
    """
    taken: list[BulkAction] = []
    total = 0
    for action in actions:
        # Never an empty request, which the servers refuse.
        if taken and total + len(action.lines) > size_bytes:
            yield taken
            taken, total = [], 0
        taken.append(action)
        total += len(action.lines)
    if taken:
        yield taken


class _Cause(msgspec.Struct, frozen=True):
    reason: str | None = None


class _Error(msgspec.Struct, frozen=True):
    type: str = ""
    reason: str | None = None
    caused_by: _Cause | None = None

    @property
    def text(self) -> str:
        """The reason, with the one behind it."""
        cause = None if self.caused_by is None else self.caused_by.reason
        parts = (self.type, self.reason, cause)
        return ": ".join(part for part in parts if part)[:REASON_SHOWN]


class _Item(msgspec.Struct, frozen=True):
    status: int
    error: _Error | None = None


class _Answer(msgspec.Struct, frozen=True):
    items: list[dict[str, _Item]]
    errors: bool = True


@dataclass(slots=True)
class BulkOutcome:
    """What became of the actions of one request."""

    done: list[int] = field(default_factory=list)
    """The offsets that need not be sent again."""
    bad: dict[int, str] = field(default_factory=dict)
    """Records that the server refuses, by their index in the batch, with the reason."""
    again: str = ""
    """Why some actions have to be sent again; empty if none has."""
    conflicts: int = 0
    """Actions that the server has in this or in a newer version."""
    newest: int = -1
    """The highest version that a conflict was about."""


def settle(actions: Sequence[BulkAction], answer: bytes) -> BulkOutcome:
    """Return what became of the actions of a request.

    Raises:
        ConfigError: an action was refused for the index, the user or another setting.
        ConnectError: the answer is none of `_bulk`.
    """
    try:
        items = msgspec.json.decode(answer, type=_Answer).items
    except msgspec.MsgspecError as error:
        raise ConnectError(f"the answer is none of _bulk: {error}") from error
    if len(items) != len(actions):
        raise ConnectError(f"_bulk answered {len(items)} of {len(actions)} actions")
    outcome = BulkOutcome()
    # By document, as what follows decides whether any action of a document is done.
    waiting: dict[tuple[str, str], list[int]] = defaultdict(list)
    unsettled: set[tuple[str, str]] = set()
    for action, each in zip(actions, items, strict=True):
        item = next(iter(each.values()), _Item(status=0))
        # A deletion of what is not there has the status 404, and no error.
        if item.error is None and (200 <= item.status < 300 or item.status == 404):  # noqa: PLR2004 - classes of statuses
            waiting[action.target].append(action.offset)
            continue
        reason = "" if item.error is None else item.error.text
        if item.status == 409:  # noqa: PLR2004
            # The document is there in this or in a newer version: what was wanted holds.
            outcome.conflicts += 1
            newer = _NEWER.search(reason)
            outcome.newest = max(outcome.newest, int(newer[1]) if newer else -1)
            waiting[action.target].append(action.offset)
        elif _is_passing(item):
            outcome.again = outcome.again or f"{item.status} {reason}"
            unsettled.add(action.target)
        elif item.status in {400, 413}:
            # Most errors of status 400 are the document's, and some would meet every document.
            _check_blame(item, reason)
            outcome.bad[action.at] = reason
        else:
            raise Refused(f"index {action.target[0]}: {item.status} {reason}")
    # 1. In one request, index of k at offset 110 waits for room, and the deletion at 210 is done.
    # 2. A minute later the server has forgotten the version of the deletion (`index.gc_deletes`).
    # 3. Index of k alone would bring the document back. So all actions of k are sent again.
    for target, offsets in waiting.items():
        if target not in unsettled:
            outcome.done += offsets
    return outcome


def _is_passing(item: _Item) -> bool:
    # 403 with this type is a full disk to older servers, which lift it by themselves.
    is_blocked = item.error is not None and item.error.type == "cluster_block_exception"
    return item.status == 429 or item.status >= 500 or not item.status or is_blocked  # noqa: PLR2004


def _check_blame(item: _Item, reason: str) -> None:
    """Raise ConfigError if the error blames the index for all documents."""
    kind = "" if item.error is None else item.error.type
    if kind in _SETTING_FAULTS:
        raise ConfigError(reason)
    if _NEEDS_CREATE in reason:
        raise ConfigError(f"{reason}: set data_stream=True")
