"""State reader: the rows of tasks, out of state directories and snapshots, without the app.

A directory is opened as a secondary of its database: nothing is locked and nothing is written to
it, so a worker may have it open. What the worker has not flushed to disk yet is not there; the
changelog offset says how far the rows reach. A snapshot of `backfill` is a directory or URL with a
manifest. Of the snapshots that workers leave in object storage (`App(snapshots=)`), each task's
newest one counts; it is fetched for each pass over its rows, and removed after it.

Bytes are shown as what they are known or seen to be: the layouts of keys are those of
`tables/stores/store`, and values are JSON, MessagePack, text or hex, behind the time of their row.
Rule of the module: a layout is only accepted if its times lie between 1970 and 2200, whose first
bytes no text begins with.
"""

from __future__ import annotations

import json
import logging
import re
import struct
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event
from typing import Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit

import msgspec

from streamlog.durations import moment
from streamlog.errors import CorruptData, StreamlogError, UsageError
from streamlog.metrics.build_info import install_command
from streamlog.snapshots.manifest import MANIFEST_FILE
from streamlog.snapshots.object_store import SCHEMES, ObjectFolder
from streamlog.snapshots.snapshot import Snapshot
from streamlog.snapshots.store_types import NO_TYPES, Content, StoreTypes
from streamlog.snapshots.task_manifest import (
    MANIFEST_BYTES_MAX,
    MANIFESTS,
    TaskManifest,
    decode_manifest,
)
from streamlog.snapshots.task_snapshots import TaskSnapshots
from streamlog.tables.local_disk.rocksdb_store import read_secondary
from streamlog.tables.local_disk.task_directory import TaskDirectory
from streamlog.tables.state.changelog import OFFSET_KEY, ROWS_FROM
from streamlog.tables.stores.store import span_at, split_window_key, time_at, unescape_key
from streamlog.tables.stores.ttl_queue import HINTS, ROWS

TASK: Final = re.compile(r"\d+_\d+")
_MANIFEST: Final = re.compile(rf"(?P<task>(?:[^/]+/){{0,2}}){MANIFESTS}/[^/]+")
"""The name of a task's manifest, below the URL of all apps, of one app, or of one task."""
TIME_MS_MAX: Final = 7_258_118_400_000
"""The year 2200."""
SPAN_BYTES: Final = 16
TIME_BYTES: Final = 8
NUMBER_BYTES: Final = 8
_TIME: Final = struct.Struct(">q")
_OFFSET: Final = struct.Struct(">q")

logger = logging.getLogger(__name__)

Pair = tuple[bytes, bytes]


class StoredTask(NamedTuple):
    """The state of one task. It can be sent to other processes that reach its place."""

    name: str
    where: str
    read: Callable[[], Iterator[Pair]]
    """Yields all rows in the order of their keys, each time it is called."""
    app_id: str
    offset: int | None = None
    """The changelog offset that the rows reflect, if it is known without reading them."""


class StoredRow(msgspec.Struct, frozen=True):
    """A row as people read it."""

    task: str
    store: str
    key: Any
    value: Any
    window: tuple[str, str] | None = None
    """Start and end, in UTC."""
    time: str | None = None
    """The time that the row was last changed at, in the time of its records."""
    raw: tuple[str, ...] = ()
    """What of it is neither JSON, a number, text nor MessagePack, and is shown as its bytes, in
    hexadecimal digits: "key", "value"."""


def stored_tasks(where: str) -> list[StoredTask]:
    """Return the tasks whose state a directory, or a snapshot at a path or URL, holds.

    Raises:
        UsageError: there is no state.
        CorruptData: a snapshot is damaged.
    """
    if "://" in where:
        return _tasks_in_objects(where) or _tasks_of_remote(where)
    if Path(where, MANIFEST_FILE).exists():
        return _tasks_of_snapshot(where)
    found = [_stored(path) for path in _task_paths(Path(where))]
    if not any(found):
        raise UsageError(
            f"{where} holds no state: give the state directory of an app, of a task, or a snapshot"
        )
    return [each for each in found if each is not None]


def _tasks_of_remote(where: str) -> list[StoredTask]:
    try:
        return _tasks_of_snapshot(where)
    except StreamlogError as error:
        needed = (
            "" if find_spec("obstore") else f", which need obstore: {install_command('objects')}"
        )
        raise UsageError(
            f"{where} has no snapshots of workers{needed}; and none of `backfill`: {error}"
        ) from error


def _tasks_of_snapshot(where: str) -> list[StoredTask]:
    snapshot = Snapshot.open(where)
    return [
        StoredTask(
            entry.task, snapshot.url, partial(snapshot.rows, entry), snapshot.manifest.app_id
        )
        for entry in snapshot.manifest.tasks
        if entry.progress is not None
    ]


def _tasks_in_objects(where: str) -> list[StoredTask]:
    """Return the tasks with snapshots below a URL: that of the app's setting, of an app, or a task.

    Raises:
        UsageError: several apps have snapshots there.
        ObjectStoreFailed: it can't be read.
    """
    url = urlsplit(where.rstrip("/"))
    # Without obstore, a URL is one of fsspec; and a directory would be created by opening it.
    if url.scheme not in SCHEMES or find_spec("obstore") is None:
        return []
    if url.scheme == "file" and not Path(unquote(url.path)).is_dir():
        return []
    folder = ObjectFolder(where)
    names: dict[str, list[str]] = {}
    for name in folder.objects(""):
        if found := _MANIFEST.fullmatch(name):
            names.setdefault(found["task"], []).append(name)
    manifests = [_newest(folder, task, each) for task, each in sorted(names.items())]
    tasks = [each for each in manifests if each is not None]
    apps = sorted({manifest.identity.app_id for _, manifest in tasks})
    if len(apps) > 1:
        raise UsageError(
            f"{where} has snapshots of several apps: give the URL of one, such as"
            f" {folder.url}/{apps[0]} (there are: {', '.join(apps)})"
        )
    return [
        StoredTask(
            each.identity.task, at, partial(_fetched, at, each), each.identity.app_id, each.offset
        )
        for at, each in tasks
    ]


def _newest(
    folder: ObjectFolder, task: str, names: Iterable[str]
) -> tuple[str, TaskManifest] | None:
    """Return the newest manifest of a task that can be read, and the URL of the task."""
    # Names begin with the offset.
    for name in sorted(names, reverse=True):
        try:
            data = folder.read(name, bytes_max=MANIFEST_BYTES_MAX)
            manifest = decode_manifest(data, name.removeprefix(task))
        except CorruptData as error:
            logger.warning("%s/%s is left out: %s", folder.url, name, error)
            continue
        return f"{folder.url}/{task}".rstrip("/"), manifest
    return None


def _fetched(url: str, manifest: TaskManifest) -> Iterator[Pair]:
    """Yield the rows of a task's snapshot, whose files lie below `url`.

    Raises:
        UsageError: the snapshot was moved, so that its URL does not name its app and task.
    """
    own = f"/{manifest.identity.app_id}/{manifest.identity.task}"
    if not url.endswith(own):
        raise UsageError(f"{url} has the snapshot of another task: its URL must end with {own}")
    snapshots = TaskSnapshots(ObjectFolder(url.removesuffix(own)), manifest.identity)
    with TemporaryDirectory() as scratch:
        path = Path(scratch, "state")
        snapshots.download(manifest, str(path), Event())
        yield from _rows_in(str(path))


def _task_paths(where: Path) -> list[Path]:
    """Return the directories of tasks: this one, or those one or two levels below."""
    if TASK.fullmatch(where.name):
        return [where]
    below = [*where.glob("*_*"), *where.glob("*/*_*")]
    return sorted(each for each in below if TASK.fullmatch(each.name) and each.is_dir())


def _stored(path: Path) -> StoredTask | None:
    sources = TaskDirectory(str(path)).sources()
    if not sources:
        return None
    newest = sources[0].path
    # A state directory has a directory for each app.
    return StoredTask(path.name, newest, partial(_rows_in, newest), path.absolute().parent.name)


def _rows_in(path: str) -> Iterator[Pair]:
    # The secondary's own log files go there, and not into the worker's directory.
    with TemporaryDirectory() as scratch:
        yield from read_secondary(path, scratch)


def changelog_offset_of(task: StoredTask) -> int | None:
    """Return the changelog offset that a task's rows reflect; None for a history's snapshot."""
    if task.offset is not None:
        return task.offset
    for key, value in task.read():
        if key == OFFSET_KEY:
            offset: int = _OFFSET.unpack(value)[0]
            return offset
        # Reserved keys come first.
        if key >= ROWS_FROM:
            break
    return None


def rows_of(task: StoredTask, store: str | None = None) -> Iterator[tuple[str, bytes, bytes]]:
    """Yield store, key and value of a task's rows, of one store or of all."""
    for key, value in task.read():
        if key < ROWS_FROM:
            continue
        name = key[1 : 1 + key[0]].decode(errors="backslashreplace")
        if store is None or name == store:
            yield name, key[1 + key[0] :], value


def store_names(where: str, is_late: Callable[[], bool]) -> set[str]:
    """Return the names of stores, of those that are found until it is late.

    Raises:
        UsageError: there is no state.
        CorruptData: it can't be read.
    """
    found: set[str] = set()
    for task in stored_tasks(where):
        for name, _key, _value in rows_of(task):
            found.add(name)
            if is_late():
                return found
    return found


def shown(
    task: str, store: str, key: bytes, value: bytes, types: StoreTypes = NO_TYPES
) -> StoredRow:
    """Return a row as people read it: by the types of its store, or as its bytes are seen to be."""
    own, window = _key(key)
    # Of a type that has an empty value, eight bytes may be a time and that value.
    may_be_empty = types.value is not None and types.value(b"") is not None
    time, content = _split_time(value, TIME_BYTES if may_be_empty else TIME_BYTES + 1)
    read_key, read_value = types.key or _readable, types.value or _readable
    parts = {"key": read_key(own), "value": read_value(content)}
    raw = tuple(name for name, part in parts.items() if part is None)
    # A layout that is not known must not pass for a value: it is marked, and in hexadecimal.
    readable_key, readable_value = (
        f"0x{data.hex()}" if part is None else part.content
        for part, data in zip(parts.values(), (own, content), strict=True)
    )
    return StoredRow(task, store, readable_key, readable_value, window, time, raw)


def _key(key: bytes) -> tuple[bytes, tuple[str, str] | None]:
    """Return the key of the app, and its window if the row has one."""
    if len(key) >= SPAN_BYTES:
        end_ms, start_ms, rest = split_window_key(key)
        if 0 <= start_ms < end_ms <= TIME_MS_MAX:
            return rest, _span(start_ms, end_ms)
    if key.startswith((ROWS, HINTS)):
        return _timed_key(key)
    return key, None


def _timed_key(key: bytes) -> tuple[bytes, tuple[str, str] | None]:
    """Return the key of a row of sessions or of a window that is kept for lookups."""
    try:
        own, at = unescape_key(key[len(ROWS) :])
        left = len(key) - len(ROWS) - at
        if left == SPAN_BYTES:
            end_ms, start_ms = span_at(key, len(ROWS) + at)
            if 0 <= start_ms <= end_ms <= TIME_MS_MAX:
                return own, _span(start_ms, end_ms)
        if left == TIME_BYTES:
            start_ms = time_at(key, len(ROWS) + at)
            if 0 <= start_ms <= TIME_MS_MAX:
                return own, _span(start_ms, start_ms)
    except (ValueError, struct.error):
        return key, None
    # Neither a session nor a window: the key of another store, such as a number.
    return key, None


def _span(start_ms: int, end_ms: int) -> tuple[str, str]:
    return moment(start_ms).isoformat(), moment(end_ms).isoformat()


def _split_time(value: bytes, least_bytes: int) -> tuple[str | None, bytes]:
    """Return the time before a value, if it has one, and the value."""
    if len(value) >= least_bytes:
        time_ms: int = _TIME.unpack_from(value)[0]
        if 0 < time_ms <= TIME_MS_MAX:
            return moment(time_ms).isoformat(), value[TIME_BYTES:]
    return None, value


def _readable(data: bytes) -> Content | None:
    """Return bytes as JSON, text, a number or MessagePack; None if they are none of these."""
    try:
        return Content(json.loads(data, parse_constant=str))
    except (ValueError, RecursionError):
        pass  # No JSON: the next form is tried.
    try:
        text = data.decode()
        if text.isprintable():
            return Content(text)
    except UnicodeDecodeError:
        pass  # No text.
    # Numbers have eight bytes, as Kafka's serializers write them.
    if len(data) == NUMBER_BYTES:
        return Content(int.from_bytes(data, "big", signed=True))
    return _message_pack(data)


def _message_pack(data: bytes) -> Content | None:
    try:
        found = msgspec.msgpack.decode(data)
    except (msgspec.MsgspecError, ValueError, TypeError, RecursionError):
        return None
    # Almost every byte is MessagePack of a small number: only what has parts is believed.
    if not isinstance(found, list | dict):
        return None
    try:
        return Content(msgspec.to_builtins(found, str_keys=True))
    except (TypeError, RecursionError):
        return None


class StateDifference(NamedTuple):
    """A row that two states do not have alike; None where it is missing."""

    task: str
    store: str
    key: bytes
    before: bytes | None
    after: bytes | None

    @property
    def sign(self) -> str:
        """`+` if only the second has it, `-` if only the first, else `~`."""
        if self.before is None:
            return "+"
        return "-" if self.after is None else "~"


def differences(
    before: Iterable[StoredTask], after: Iterable[StoredTask], store: str | None = None
) -> Iterator[StateDifference]:
    """Yield the rows in which two states differ, task by task, in the order of keys."""
    first, second = {each.name: each for each in before}, {each.name: each for each in after}
    for name in sorted(first.keys() | second.keys()):
        sides = (first.get(name), second.get(name))
        left, right = (iter(()) if each is None else rows_of(each, store) for each in sides)
        for kind, key, one, other in merged(left, right):
            if one != other:
                yield StateDifference(name, kind, key, one, other)


Row = tuple[str, bytes, bytes]


def merged(
    left: Iterator[Row], right: Iterator[Row]
) -> Iterator[tuple[str, bytes, bytes | None, bytes | None]]:
    """Yield store, key and both values of the rows of two sorted states."""
    one, other = next(left, None), next(right, None)
    while one is not None or other is not None:
        # Stores are sorted by the length of their names first, as in the database.
        first = None if one is None else _order(one)
        second = None if other is None else _order(other)
        takes_left = second is None or (first is not None and first <= second)
        takes_right = first is None or (second is not None and second <= first)
        found = one if takes_left else other
        if found is not None:
            mine = one[2] if takes_left and one is not None else None
            theirs = other[2] if takes_right and other is not None else None
            yield found[0], found[1], mine, theirs
        if takes_left:
            one = next(left, None)
        if takes_right:
            other = next(right, None)


def _order(row: Row) -> tuple[int, bytes, bytes]:
    name = row[0].encode()
    return len(name), name, row[1]
