"""Catalog: the small files of a data directory, outside the partition folders.

    meta.properties   identity: cluster, node, directory (names as in Kafka)
    topics.json       topics with their ids, settings and the partitions that are here, and the
                      ids that are being deleted
    checkpoints       per partition folder: the offset before which everything is synced, and the
                      one before which everything was deleted
    clean_shutdown    exists while no process has the directory open and all of it is synced
    listener          the address of the broker that holds the lock (`ListenerFile`)
    lives             the directory's ids that may have registered last (`DirectoryIds`)
    directories       the ids and paths of all directories of a broker that has several (`volumes`)

A directory gets a new id with each start of a broker on it (compare KIP-858). The broker appends
the id to `lives` before it registers, and drops the older ones after the response, so the id that
registered last is always in the file, wherever the process was killed. The id is missing only if
the directory was restored from a backup: then it may lack records that the cluster counts on, and
the controller does not count its replicas as in sync.

Rules of this module: each file is replaced as a whole, durably, and all but the first have a
checksum; a file that can't be read is an error that names it. Nothing is guessed.
"""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from crc32c import crc32c

from streamlog import repeated
from streamlog.broker.config.broker import PARTITIONS_MAX
from streamlog.broker.config.resources import QuotaTable
from streamlog.broker.storage.disk.files import (
    MALFORMED,
    Files,
    directory_error,
    read_file,
    replace_file,
    unless_full,
)
from streamlog.broker.storage.disk.os_files import OsFiles
from streamlog.broker.storage.log.segment import SegmentEnd
from streamlog.errors import CorruptData, StreamlogError

META = "meta.properties"
TOPICS = "topics.json"
CHECKPOINTS = "checkpoints"
CLEAN_SHUTDOWN = "clean_shutdown"
LISTENER = "listener"
DIRECTORY_IDS = "lives"
DIRECTORIES = "directories"
LOCK = "lock"

RECOVERY_POINTS = "recovery_points"
LOG_START_OFFSETS = "log_start_offsets"
HIGH_WATERMARKS = "high_watermarks"

OFFSET_MAX = 2**63 - 1
NO_BROKER_EPOCH = -1

DIRECTORY_IDS_MAX = 1000
"""The ids that are kept of starts in a row whose registration got no response; older ones are
dropped."""
_FORMAT = 1
_CHECKSUM = "crc32c"
_ID_BYTES = 16

T = TypeVar("T")


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster and node that a directory belongs to."""

    cluster_id: str
    node_id: int
    directory_id: str
    rejoins: bool = False
    """Whether the node existed before, with a directory that is lost.

    Its votes are forgotten, so it does not vote before the other voters have admitted it.
    """
    metadata_id: str = ""
    """The id of the broker's first directory, where its partitions are listed; empty for that."""


class TopicEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A topic in `topics.json`, with the settings given for it."""

    name: str
    topic_id: bytes
    partitions: tuple[int, ...]
    """The partition numbers that are here."""
    configs: Mapping[str, str]
    directories: Mapping[int, str] = msgspec.field(default_factory=dict)
    """The ids of the directories of partitions that are not in the first one."""
    futures: Mapping[int, str] = msgspec.field(default_factory=dict)
    """The ids of the directories that partitions move to."""
    leaving: Mapping[int, tuple[str, ...]] = msgspec.field(default_factory=dict)
    """The ids of directories with copies of partitions that are to be deleted."""


class AlteredSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the broker that were altered while it ran, by Kafka's names."""

    default: Mapping[str, str] = msgspec.field(default_factory=dict)
    """The defaults of all brokers of the cluster."""
    node: Mapping[str, str] = msgspec.field(default_factory=dict)
    """The settings of this broker, which override the defaults."""
    quotas: QuotaTable = msgspec.field(default_factory=QuotaTable)
    """The quotas of clients."""


def new_id() -> str:
    """Return a random id as Kafka writes them: 22 characters of URL-safe base64."""
    while True:
        text = base64.urlsafe_b64encode(new_topic_id()).decode().rstrip("=")
        if not text.startswith("-"):  # A command line would take it for an option.
            return text


def new_topic_id() -> bytes:
    """Return a random topic id, 16 bytes."""
    return uuid.uuid4().bytes


class Catalog:
    """The small files of the data directory at `path`.

    Every method raises OSError if the system refuses; those that read raise CorruptData if the
    file is malformed.
    """

    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self._path = path

    def identity(self) -> Identity | None:
        """Read the identity; None for a directory that has none yet."""
        text = self._read(META)
        if text is None:
            return None
        try:
            lines = (line.partition("=") for line in text.decode().splitlines())
            properties = {name.strip(): value.strip() for name, _, value in lines}
            version = int(properties.get("version", _FORMAT))
            identity = Identity(
                cluster_id=properties["cluster.id"],
                node_id=int(properties["node.id"]),
                directory_id=properties["directory.id"],
                rejoins=properties.get("rejoins") == "true",
                metadata_id=properties.get("metadata.directory.id", ""),
            )
        except MALFORMED as error:
            raise self.damaged_error(META, error) from error
        # A newer streamlog may keep its partitions in another form, which this one would damage.
        if version != _FORMAT:
            raise self._unknown_format_error(META)
        return identity

    def write_identity(self, identity: Identity) -> None:
        """Write the identity, which makes the directory a data directory."""
        lines = (
            f"version={_FORMAT}",
            f"cluster.id={identity.cluster_id}",
            f"node.id={identity.node_id}",
            f"directory.id={identity.directory_id}",
            *(["rejoins=true"] if identity.rejoins else []),
            *([f"metadata.directory.id={identity.metadata_id}"] if identity.metadata_id else []),
        )
        self._replace(META, "\n".join(lines) + "\n")

    def directory_ids(self) -> list[bytes]:
        """Read the ids of the starts that may have registered last, the newest last."""
        content = self._read_json(DIRECTORY_IDS)
        if content is None:
            return []  # The directory is new, or older than this file.
        try:
            return [_topic_id(each) for each in content["lives"]]
        except MALFORMED as error:
            raise self.damaged_error(DIRECTORY_IDS, error) from error

    def write_directory_ids(self, ids: Sequence[bytes]) -> None:
        """Write the ids of the starts that may have registered last."""
        kept = [each.hex() for each in ids[-DIRECTORY_IDS_MAX:]]
        self._replace_json(DIRECTORY_IDS, {"version": _FORMAT, "lives": kept})

    def directories(self) -> dict[str, str]:
        """Read the paths of the broker's directories by id; empty if it has only this one."""
        content = self._read_json(DIRECTORIES)
        if content is None:
            return {}
        try:
            return _texts(content["paths"])
        except MALFORMED as error:
            raise self.damaged_error(DIRECTORIES, error) from error

    def write_directories(self, paths: Mapping[str, str]) -> None:
        """Write the paths of the broker's directories by id."""
        self._replace_json(DIRECTORIES, {"version": _FORMAT, "paths": dict(paths)})

    def topics(self) -> tuple[list[TopicEntry], set[str]]:
        """Read the topics, and the keys of what is being deleted (`deletion_key`)."""
        content = self._read_json(TOPICS)
        if content is None:
            return [], set()
        try:
            topics = [_topic(entry) for entry in content["topics"]]
            deleting = {_parse_deletion_key(text) for text in content["deleting"]}
        except MALFORMED as error:
            raise self.damaged_error(TOPICS, error) from error
        return topics, deleting

    def knows_topics(self) -> bool:
        """Whether a list of topics exists."""
        return self._read(TOPICS) is not None

    def write_topics(self, topics: Sequence[TopicEntry], deleting: set[str]) -> None:
        """Write the topics that exist from now on, and what is being deleted."""
        entries = [
            {
                "name": topic.name,
                "topic_id": topic.topic_id.hex(),
                "partitions": _partition_entry(topic.partitions),
                "configs": dict(topic.configs),
                **({"directories": _by_text(topic.directories)} if topic.directories else {}),
                **({"futures": _by_text(topic.futures)} if topic.futures else {}),
                **({"leaving": _by_text(topic.leaving)} if topic.leaving else {}),
            }
            for topic in topics
        ]
        content = {"version": _FORMAT, "topics": entries, "deleting": sorted(deleting)}
        self._replace_json(TOPICS, content)

    def recovery_points(self) -> dict[str, int]:
        """Read, by partition folder, the offset before which everything is on disk."""
        return self._checkpoints(RECOVERY_POINTS)

    def log_start_offsets(self) -> dict[str, int]:
        """Read, by partition folder, the log start offsets that are not 0."""
        return self._checkpoints(LOG_START_OFFSETS)

    def high_watermarks(self) -> dict[str, int]:
        """Read, by partition folder, the high watermarks that are not 0."""
        return self._checkpoints(HIGH_WATERMARKS)

    def write_checkpoints(
        self,
        *,
        recovery_points: Mapping[str, int],
        log_start_offsets: Mapping[str, int],
        high_watermarks: Mapping[str, int],
    ) -> None:
        """Write recovery points, log start offsets and high watermarks."""
        content = {
            "version": _FORMAT,
            RECOVERY_POINTS: dict(recovery_points),
            LOG_START_OFFSETS: dict(log_start_offsets),
            HIGH_WATERMARKS: dict(high_watermarks),
        }
        # On one line: with an indent, json encodes in Python, which holds up the event loop.
        self._replace_json(CHECKPOINTS, content, indent=None)

    def _checkpoints(self, kind: str) -> dict[str, int]:
        content = self._read_json(CHECKPOINTS)
        if content is None:
            return {}
        # Directories written before these existed lack them.
        content.setdefault(LOG_START_OFFSETS, {})
        content.setdefault(HIGH_WATERMARKS, {})
        try:
            return {str(name): _offset(offset) for name, offset in content[kind].items()}
        except MALFORMED as error:
            raise self.damaged_error(CHECKPOINTS, error) from error

    def mark_clean(self, ends: Mapping[str, SegmentEnd], *, broker_epoch: int) -> None:
        """Mark the shutdown as clean; this is the last file written before the directory closes.

        `ends` has the end of each partition by folder; `broker_epoch` is the epoch of this process.
        """
        content = {"version": _FORMAT, "ends": dict(ends), "broker_epoch": broker_epoch}
        self._replace_json(CLEAN_SHUTDOWN, content, indent=None)

    def take_clean_mark(self) -> tuple[dict[str, SegmentEnd] | None, int]:
        """Return the ends of partitions and the broker epoch of a clean shutdown; remove the mark.

        Returns None and -1 if the shutdown was not clean. A partition without an end has to be
        examined.
        """
        ends, broker_epoch = None, NO_BROKER_EPOCH
        try:
            content = self._read_json(CLEAN_SHUTDOWN)
            if content is not None:
                ends = _ends(content)
                broker_epoch = int(content.get("broker_epoch", NO_BROKER_EPOCH))
        except (CorruptData, *MALFORMED):
            ends, broker_epoch = None, NO_BROKER_EPOCH  # The mark only saves a recovery.
        # Removed before the first write: a crash from here on must lead to a recovery.
        self._remove(CLEAN_SHUTDOWN)
        return ends, broker_epoch

    def minimum_ends(self) -> dict[str, int]:
        """Return, by partition folder, the offset that the log reaches at least.

        It is the last known synced offset, or the end at a clean shutdown.
        """
        found = self.recovery_points()
        try:
            content = self._read_json(CLEAN_SHUTDOWN)
            ends = {} if content is None else _ends(content)
        except (CorruptData, *MALFORMED):
            ends = {}  # The mark only saves a recovery.
        for folder, end in ends.items():
            found[folder] = max(found.get(folder, 0), end.next_offset)
        return found

    def clean(self) -> bool:
        """Whether the last shutdown was clean and no process has opened the directory since."""
        return self._read(CLEAN_SHUTDOWN) is not None

    def listener(self) -> tuple[str, int] | None:
        """Read host and port of the broker that holds the directory; None if it does not listen."""
        content = self._read_json(LISTENER)
        if content is None:
            return None
        try:
            return str(content["host"]), int(content["port"])
        except MALFORMED as error:
            raise self.damaged_error(LISTENER, error) from error

    def registry_url(self) -> str | None:
        """Read the URL of the schema registry of that broker; None if it serves none."""
        content = self._read_json(LISTENER)
        if content is None:
            return None
        url = content.get("registry")
        return None if url is None else str(url)

    def write_listener(self, host: str, port: int, registry_url: str | None) -> None:
        """Write the broker's address, and the URL of its schema registry."""
        content = {"version": _FORMAT, "host": host, "port": port}
        if registry_url is not None:
            content["registry"] = registry_url
        self._replace_json(LISTENER, content)

    def remove_listener(self) -> None:
        """Remove the broker's address."""
        self._remove(LISTENER)

    def _read(self, name: str) -> bytes | None:
        try:
            return read_file(self._files, f"{self._path}/{name}")
        except FileNotFoundError:
            return None

    # The content is checked by the callers, under `except MALFORMED`.
    def _read_json(self, name: str) -> dict[str, Any] | None:
        data = self._read(name)
        if data is None:
            return None
        try:
            content = json.loads(data)
            checksum = content.pop(_CHECKSUM, None) if isinstance(content, dict) else None
            differs = checksum is not None and checksum != _checksum(content)
        except (ValueError, RecursionError) as error:
            raise self.damaged_error(name, error) from error
        if not isinstance(content, dict) or content.get("version") != _FORMAT:
            raise self._unknown_format_error(name)
        # Old directories have no checksums, and neither has a file that was edited by hand.
        if differs:
            raise CorruptData(
                f"{self._path}/{name} is damaged (its checksum is wrong); restore it from a"
                f' copy, or if it was edited on purpose, remove "{_CHECKSUM}" from it'
            )
        return content

    def _replace(self, name: str, text: str) -> None:
        replace_file(self._files, f"{self._path}/{name}", text.encode())

    def _replace_json(
        self, name: str, content: Mapping[str, object], *, indent: int | None = 2
    ) -> None:
        checked = {**content, _CHECKSUM: _checksum(content)}
        self._replace(name, json.dumps(checked, indent=indent) + "\n")

    def _remove(self, name: str) -> None:
        try:
            self._files.remove(f"{self._path}/{name}")
        except FileNotFoundError:
            return
        self._files.sync_directory(self._path)

    def _unknown_format_error(self, name: str) -> CorruptData:
        return CorruptData(
            f"{self._path}/{name} has an unknown format (this streamlog reads format {_FORMAT}):"
            " use the newer streamlog that wrote it"
        )

    def damaged_error(self, name: str, error: Exception) -> CorruptData:
        """Return the error for a file that can't be decoded."""
        return CorruptData(
            f"{self._path}/{name} is damaged ({type(error).__name__}: {error}); restore it from a"
            " copy"
        )


def _checksum(content: Mapping[str, object]) -> int:
    """Return the checksum of a file's content, the same after writing and reading it."""
    checksum: int = crc32c(json.dumps(content).encode())
    return checksum


def _offset(value: object) -> int:
    if not isinstance(value, int) or not 0 <= value <= OFFSET_MAX:
        raise ValueError(f"{value!r} is not an offset or an id")
    return value


def _ends(content: dict[str, Any]) -> dict[str, SegmentEnd]:
    found = content.get("ends", {}).items()
    return {str(folder): SegmentEnd(*map(int, end)) for folder, end in found}


def _partition_entry(partitions: tuple[int, ...]) -> int | list[int]:
    """Return the number of partitions if none is missing, and their numbers otherwise."""
    count = len(partitions)
    return count if partitions == tuple(range(count)) else list(partitions)


def _numbers(entry: object) -> tuple[int, ...]:
    if isinstance(entry, list):
        found = tuple(sorted(map(int, entry)))
        if not found or found[0] < 0 or found[-1] >= PARTITIONS_MAX:
            raise ValueError(f"a topic can't have partitions {entry}")
        return found
    if not isinstance(entry, int) or not 1 <= entry <= PARTITIONS_MAX:
        raise ValueError(f"a topic can't have {entry} partitions")
    return tuple(range(entry))


def _topic(entry: dict[str, Any]) -> TopicEntry:
    partitions = _numbers(entry["partitions"])
    return TopicEntry(
        name=str(entry["name"]),
        topic_id=_topic_id(entry["topic_id"]),
        partitions=partitions,
        configs=_texts(entry["configs"]),
        directories={
            int(number): str(each) for number, each in entry.get("directories", {}).items()
        },
        futures={int(number): str(each) for number, each in entry.get("futures", {}).items()},
        leaving={
            int(number): tuple(map(str, each)) for number, each in entry.get("leaving", {}).items()
        },
    )


def _by_text(directories: Mapping[int, T]) -> dict[str, T]:
    return {str(number): each for number, each in sorted(directories.items())}


def _texts(entries: dict[str, Any]) -> dict[str, str]:
    return {str(name): str(value) for name, value in entries.items()}


def deletion_key(topic_id: bytes, partition: int | None = None) -> str:
    """Return the entry of `topics.json` for a topic, or a partition, that is being deleted."""
    return topic_id.hex() if partition is None else f"{topic_id.hex()}-{partition}"


def _parse_deletion_key(text: str) -> str:
    topic_id, dash, partition = text.partition("-")
    return deletion_key(_topic_id(topic_id), int(partition) if dash else None)


def _topic_id(text: str) -> bytes:
    topic_id = bytes.fromhex(text)
    if len(topic_id) != _ID_BYTES:
        raise ValueError(f"a topic id has {len(topic_id)} bytes")
    return topic_id


def describe_holder(files: Files, path: str) -> str:
    """Describe the process that holds the lock, as far as it has written its details."""
    try:
        process = f"process {json.loads(read_file(files, f'{path}/{LOCK}'))['process_id']}"
        listener = Catalog(files, path).listener()
    except (OSError, RecursionError, StreamlogError, *MALFORMED):
        process, listener = "another process", None
    if listener is None:
        where = "which does not listen yet"
    else:
        where = f"which listens on {listener[0]}:{listener[1]}"
    return f"{path} is in use by {process}, {where}"


_log = repeated.logger(__name__)


class DirectoryIds:
    """The ids of the starts of one data directory (KIP-858); `draw` returns a new id."""

    def __init__(self, catalog: Catalog, path: str, draw: Callable[[], bytes]) -> None:
        self._catalog = catalog
        self._path = path
        self._draw = draw
        self._own: bytes | None = None

    def _read(self) -> tuple[list[bytes], bool]:
        """Return the ids in the directory, and whether the file was readable."""
        try:
            return self._catalog.directory_ids(), True
        except CorruptData as error:
            _log.warning(
                "%s; older copies of the directory go unnoticed until the next start", error
            )
            return [], False

    def begin(self) -> list[bytes]:
        """Begin a start; return the ids to register with, this start's last.

        If the disk refuses the file, the broker registers with the ids of earlier starts
        only. If the ids can't be read, none is returned, and the controller does not compare the
        directory this time.
        """
        ids, is_readable = self._read()
        own = self._draw()
        # 1. Starts 1 and 2 are in the file; start 3 appends its id and registers with 1, 2, 3.
        # 2. The controller knows 2 from the last registration: it finds it, so this is the same
        #    directory, and remembers 3. 3. After its response, `keep` leaves only 3.
        # A copy restored from before start 2 has only 1: the controller does not find 2 in it.
        try:
            self._catalog.write_directory_ids([*ids, own])
        except OSError as error:
            _log.warning(
                "%s: the id of this start can't be written: %s", self._path, error.strerror
            )
            return ids
        self._own = own
        return [*ids, own] if is_readable else []

    @property
    def has_earlier_start(self) -> bool:
        """Whether a broker was started on this directory before."""
        ids, is_readable = self._read()
        return bool(ids) or not is_readable

    def keep(self) -> None:
        """Drop earlier ids, because the controller knows this one."""
        if self._own is None:
            return
        try:
            self._catalog.write_directory_ids([self._own])
        except OSError as error:
            _log.warning(
                "%s: the ids of earlier starts can't be dropped: %s", self._path, error.strerror
            )


class ListenerFile:
    """The file with the broker's address; on a full disk, it is written later."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._pending: tuple[str, int] | None = None
        self.registry_url: str | None = None
        """The URL of the broker's schema registry, which the next write includes."""

    @property
    def is_write_pending(self) -> bool:
        """Whether a full disk has refused the file."""
        return self._pending is not None

    def write(self, host: str, port: int) -> None:
        """Write the address. Raises OSError, unless the disk is full."""
        self._pending = (host, port)
        with unless_full(f"the address of this broker ({host}:{port})"):
            self.settle()

    def settle(self) -> None:
        """Write the address that a full disk has refused.

        Raises:
            OSError: the disk refused.
        """
        if self._pending is not None:
            self._catalog.write_listener(*self._pending, self.registry_url)
            self._pending = None


def read_listener(path: str, *, files: Files | None = None) -> tuple[str, int] | None:
    """Read host and port of the process that holds a directory; None if it does not listen.

    Raises:
        LogDirectoryError: the disk refused.
        CorruptData: the file is damaged.
    """
    try:
        return Catalog(OsFiles() if files is None else files, path).listener()
    except OSError as error:
        raise directory_error(error, path) from error


def read_registry_url(path: str) -> str | None:
    """Read the URL of the schema registry of the process that holds a directory, if any.

    Raises:
        LogDirectoryError: the disk refused.
        CorruptData: the file is damaged.
    """
    try:
        return Catalog(OsFiles(), path).registry_url()
    except OSError as error:
        raise directory_error(error, path) from error
