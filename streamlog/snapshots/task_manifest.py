"""Task manifest: what a snapshot of one task's state in object storage consists of.

A snapshot holds the files of the task's database, as it was at one offset of its changelog. Its
manifest names each file by the SHA-256 of its content, and is written after all of them. So a file
is stored once however many snapshots share it, an interrupted upload leaves no snapshot, and two
owners of one task never overwrite each other's files.

A manifest is a statement about the changelog, and not about its writer: "before offset 500, the
changelog amounts to these rows". Of several, the one with the largest offset that the changelog
confirms counts, whichever worker wrote it:

1. Worker A owns task 0_1 and snapshots offset 400. It is blocked; B takes over and snapshots 500.
2. A wakes up and uploads a snapshot of offset 420, later than B's by the clock.
3. The next owner begins with 500.

Below the task's prefix lie `files/<SHA-256>` and `manifests/<offset>-<SHA-256>`. A manifest's own
name has the SHA-256 of its bytes, so a damaged one is recognised. Rule of the module: pure. Not
done here: which files to upload, keep and remove (`upload_plan`), and the transfers
(`task_snapshots`).
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

import msgspec

from streamlog.blueprints.blueprint import stores_of
from streamlog.errors import CorruptData
from streamlog.topology import Subtopology

FORMAT_VERSION: Final = 1
FILES: Final = "files"
MANIFESTS: Final = "manifests"
MANIFEST_BYTES_MAX: Final = 64 * 1024 * 1024
"""A larger object is no manifest. Most of a manifest is the task's progress, usually some KiB."""
OFFSET_DIGITS: Final = 20
"""Enough digits for names to sort as offsets do, as in the names of segments."""

_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")
"""The names of RocksDB's files; none leads out of a directory."""
_DIGEST = re.compile(r"[0-9a-f]{64}")
_MANIFEST_NAME = re.compile(rf"(\d{{{OFFSET_DIGITS}}})-([0-9a-f]{{64}})")


class StateIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """What the state of a task belongs to. State of another identity is never used."""

    app_id: str
    task: str
    """The task's id as text."""
    cluster_id: str
    changelog: str
    """The topic of the changelog."""
    changelog_id: str
    """The id of that topic, as hexadecimal text; empty if brokers report none."""
    partitions: int
    """The number of tasks of the sub-topology: with another number, keys are in other tasks."""
    stores: str
    """A digest of the stores of the sub-topology: their names, serdes and windows."""


class StoredFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of the database."""

    name: str
    """Its name in the database's directory."""
    size_bytes: int
    sha256: str
    """Of its content, as 64 hexadecimal digits: its name in the object store."""

    @property
    def object_name(self) -> str:
        """The name of the object, below the task's prefix."""
        return f"{FILES}/{self.sha256}"


class TaskManifest(msgspec.Struct, frozen=True, kw_only=True):
    """The description of a snapshot of one task."""

    format: int = FORMAT_VERSION
    identity: StateIdentity
    offset: int
    """The state reflects the changelog before this offset."""
    created_ms: int
    """Wall-clock time of the writer, ms since 1970."""
    reserved: tuple[tuple[bytes, bytes], ...]
    """Rows of the database that tell whether the changelog is still the one that was read: see
    `find_departure`."""
    files: tuple[StoredFile, ...]

    @property
    def size_bytes(self) -> int:
        """Size of all files in bytes."""
        return sum(file.size_bytes for file in self.files)

    def encode(self) -> bytes:
        """Return the manifest as JSON."""
        return msgspec.json.encode(self, order="deterministic")

    def name(self) -> str:
        """Return the name of the manifest's object, below the task's prefix."""
        digest = hashlib.sha256(self.encode()).hexdigest()
        return f"{MANIFESTS}/{self.offset:0{OFFSET_DIGITS}d}-{digest}"


class _Format(msgspec.Struct):
    format: int


class NewerFormat(CorruptData):
    """A newer streamlog wrote the manifest: it is whole, and its files are not known here."""


def decode_manifest(data: bytes, name: str) -> TaskManifest:
    """Return the manifest in the content of an object.

    Args:
        data: the content.
        name: the name of the object, below the task's prefix.

    Raises:
        NewerFormat: a newer streamlog wrote it.
        CorruptData: it is damaged, or no manifest.
    """
    found = _MANIFEST_NAME.fullmatch(name.removeprefix(f"{MANIFESTS}/"))
    if found is None or hashlib.sha256(data).hexdigest() != found[2]:
        raise CorruptData(f"{name} is damaged: its content is not what its name says")
    try:
        # The format alone first: a newer manifest may not decode as this type.
        version = msgspec.json.decode(data, type=_Format).format
        if version != FORMAT_VERSION:
            raise NewerFormat(
                f"{name} has format {version}, and this streamlog reads {FORMAT_VERSION}: a newer "
                "streamlog wrote it"
            )
        manifest = msgspec.json.decode(data, type=TaskManifest)
    except (msgspec.MsgspecError, ValueError) as error:
        raise CorruptData(f"{name} can't be decoded: {error}") from error
    _check(manifest, name, offset=int(found[1]))
    return manifest


def _check(manifest: TaskManifest, name: str, *, offset: int) -> None:
    names = {file.name for file in manifest.files}
    is_sound = (
        manifest.offset == offset
        and len(names) == len(manifest.files)
        and all(map(_FILE_NAME.fullmatch, names))
        and all(_DIGEST.fullmatch(file.sha256) for file in manifest.files)
        and all(file.size_bytes >= 0 for file in manifest.files)
    )
    if not is_sound:
        raise CorruptData(f"{name} is not sound: it has another offset, or files with wrong names")


def digest_of_stores(sub: Subtopology) -> str:
    """Return 64 hexadecimal digits that identify what the stores of a sub-topology hold.

    Operators and functions do not count: a changed program keeps the rows that its changelog
    holds, and may begin with a snapshot of them.
    """
    stores = {name: (entry.kind, entry.content) for name, entry in stores_of(sub)}
    return hashlib.sha256(msgspec.json.encode(stores, order="deterministic")).hexdigest()
