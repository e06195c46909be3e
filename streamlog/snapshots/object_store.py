"""Object store: the objects below one URL, in S3 and its likes or in a directory.

The only module that uses obstore. Calls block; they belong on a thread. Rules: an object appears
whole or not at all; every request has a time-out and few retries, because the caller retries with
a back-off of its own and has other work meanwhile; whatever obstore raises becomes
`ObjectStoreFailed`. Credentials and endpoints come from the environment, as for the tools of the
provider (`AWS_ENDPOINT_URL`, `AWS_REGION`, ...). Not done here: what the objects mean
(`task_snapshots`).
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from importlib import import_module
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import msgspec

from streamlog.errors import ConfigError, CorruptData, StreamlogError
from streamlog.metrics.build_info import install_command
from streamlog.snapshots.upload_plan import StoredObject

CHUNK_BYTES: Final = 8 * 1024 * 1024
"""Size of the parts in which a large object is sent. S3 takes 10,000 parts of at least 5 MiB."""
READ_BYTES: Final = 2 * 1024 * 1024
"""Size of the pieces in which an object is read. Several tasks read several objects at one time."""
PARTS_AT_ONCE: Final = 2
"""Parts of one object on their way at one time: with the next one, at most 24 MiB of memory."""
REQUEST_TIMEOUT_S: Final = 30
CONNECT_TIMEOUT_S: Final = 5
RETRIES_MAX: Final = 2
RETRY_TIMEOUT_S: Final = 20
"""No retry begins later than this after the first attempt."""
OBJECTS_MAX: Final = 100_000
"""More objects of one task are no snapshots of ours: 100,000 files are 6 TB of state."""
SCHEMES: Final = ("file", "s3", "gs", "az")
BYTES_PER_S: Final = 64 * 1024 * 1024
"""Default limit of uploads: half of a link of 1 Gbit/s."""


class ObjectStoreFailed(StreamlogError):
    """An object store can't be reached, or refuses a request; it may answer later."""

    retriable = True
    exit_code = 4


class ObjectMissing(CorruptData):
    """There is no such object."""


class SnapshotSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where and how often workers snapshot the state of their tasks."""

    url: str
    """The object store or directory, with a prefix."""
    interval_ms: int
    """The time between two snapshots of a task, in milliseconds."""
    bytes_per_s: int = BYTES_PER_S
    """The limit of a worker's uploads, in bytes per second."""

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            ConfigError: one is out of range, or the URL names no store.
        """
        parts = urlsplit(self.url)
        # A directory has no host before it, and a bucket is one: s3:/bucket names none.
        store = parts.path.strip("/") if parts.scheme == "file" else parts.netloc
        if parts.scheme not in SCHEMES or not store:
            raise ConfigError(
                f"snapshots is {self.url!r}: use s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, "
                "az://CONTAINER/PREFIX or file:///DIRECTORY"
            )
        if self.bytes_per_s < 1:
            raise ConfigError(f"snapshot_bytes_per_s is {self.bytes_per_s}: set it to 1 or more")


class ObjectFolder:
    """The objects below a URL; one thread at a time uses it, except for `pieces`."""

    def __init__(self, url: str) -> None:
        """Name a place; nothing is created before the first object.

        Raises:
            ConfigError: obstore is not installed, or does not take the URL.
        """
        self.url = url.rstrip("/")
        try:
            self._obstore = import_module("obstore")
            stores = import_module("obstore.store")
        except ImportError as error:
            raise ConfigError(
                f"snapshots at {url} need obstore: {install_command('objects')}"
            ) from error
        try:
            self._store = _open_store(stores, self.url)
        except Exception as error:
            raise ConfigError(f"snapshots can't be kept at {url}: {_first_line(error)}") from error

    def objects(self, prefix: str) -> dict[str, StoredObject]:
        """Return the objects whose names begin with `prefix` and a slash, by the rest of the name.

        Raises:
            ObjectStoreFailed: the store can't be read, or has more than `OBJECTS_MAX`.
        """
        found: dict[str, StoredObject] = {}
        with self._failing(f"list {prefix}"):
            for page in self._obstore.list(self._store, prefix=prefix):
                for each in page:
                    name = str(each["path"]).removeprefix(f"{prefix}/")
                    written_ms = int(each["last_modified"].timestamp() * 1000)
                    found[name] = StoredObject(int(each["size"]), written_ms)
                if len(found) > OBJECTS_MAX:
                    raise ObjectStoreFailed(
                        f"{self.url}/{prefix} has more than {OBJECTS_MAX} objects: use a prefix "
                        "that nothing else writes to"
                    )
        return found

    def put(self, name: str, pieces: Sequence[bytes] | Iterator[bytes]) -> None:
        """Write an object, from pieces of `CHUNK_BYTES` if it has several.

        Raises:
            ObjectStoreFailed: it can't be written; then there is no object, or the former one.
        """
        # Only an iterator is worth an upload in parts, which takes three requests at least.
        is_large = not isinstance(pieces, Sequence)
        with self._failing(f"write {name}"):
            self._obstore.put(
                self._store,
                name,
                pieces if is_large else b"".join(pieces),
                use_multipart=is_large,
                chunk_size=CHUNK_BYTES,
                max_concurrency=PARTS_AT_ONCE,
            )

    def pieces(self, name: str) -> Iterator[memoryview]:
        """Yield the content of an object; several threads may read at one time.

        Raises:
            ObjectMissing: there is no such object.
            ObjectStoreFailed: it can't be read.
        """
        with self._failing(f"read {name}"):
            for piece in self._obstore.get(self._store, name).stream(min_chunk_size=READ_BYTES):
                yield memoryview(piece)

    def read(self, name: str, *, bytes_max: int) -> bytes:
        """Return the content of a small object.

        Raises:
            ObjectMissing: there is no such object.
            CorruptData: it is larger than `bytes_max`.
            ObjectStoreFailed: it can't be read.
        """
        found = bytearray()
        for piece in self.pieces(name):
            found += piece
            if len(found) > bytes_max:
                raise CorruptData(f"{self.url}/{name} is larger than {bytes_max} bytes")
        return bytes(found)

    def remove(self, names: Collection[str]) -> None:
        """Remove objects; those that don't exist are no error.

        Raises:
            ObjectStoreFailed: they can't be removed.
        """
        for name in names:
            try:
                with self._failing(f"remove {name}"):
                    self._obstore.delete(self._store, name)
            except ObjectMissing:
                continue

    @contextmanager
    def _failing(self, what: str) -> Iterator[None]:
        try:
            yield
        except (StreamlogError, GeneratorExit):
            raise
        except FileNotFoundError as error:
            raise ObjectMissing(f"{self.url} has no such object: {what}") from error
        except Exception as error:
            # obstore raises classes of its own, OSError and ValueError, for one and the same cause.
            raise ObjectStoreFailed(
                f"{self.url} does not {what}: {_first_line(error)}; check the URL, the network and "
                "the credentials"
            ) from error


def _open_store(stores: Any, url: str) -> Any:  # noqa: ANN401 - a module that is imported by name
    parts = urlsplit(url)
    if parts.scheme == "file":
        path = unquote(parts.path)
        os.makedirs(path, exist_ok=True)  # noqa: PTH103 - paths are text in all of the engine
        return stores.LocalStore(prefix=path, mkdir=True)
    client: dict[str, Any] = {
        "timeout": timedelta(seconds=REQUEST_TIMEOUT_S),
        "connect_timeout": timedelta(seconds=CONNECT_TIMEOUT_S),
        # For an endpoint that the environment names by http://, such as a server on this machine.
        "allow_http": os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://"),
    }
    retries = {
        "max_retries": RETRIES_MAX,
        "retry_timeout": timedelta(seconds=RETRY_TIMEOUT_S),
    }
    return stores.from_url(url, client_options=client, retry_config=retries)


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
