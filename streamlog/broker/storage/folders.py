"""Folders: the partitions' folders in a data directory.

A partition has the folder `p-<topic id>-<number>`: by id and not by name, so that a topic that
is made again never meets its old files. Rule of the file: a folder with batches in it is only
removed if the deletion of its topic was written down before; what nobody knows is left alone.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from contextlib import closing, suppress

from streamlog import repeated
from streamlog.broker.storage.files import Files
from streamlog.broker.storage.segment import DELETED_SUFFIX, LOG_SUFFIX
from streamlog.errors import LogDirectoryLost

_FOLDER = re.compile(r"p-([0-9a-f]{32})-(\d+)(\.deleted)?")
STRAY_SUFFIX = "-stray"
"""Of a folder that nobody looks into: what the cluster's metadata has never heard of."""

_logger = repeated.logger(__name__)


def partition_folder(topic_id: bytes, partition: int) -> str:
    """The name of a partition's folder in the data directory."""
    return f"p-{topic_id.hex()}-{partition}"


def partition_folders(names: Iterable[str]) -> list[str]:
    """Those of the names that a partition's folder has, or had before its deletion began."""
    return sorted(name for name in names if _FOLDER.fullmatch(name))


def strays(names: Iterable[str]) -> list[str]:
    """Those of the names that belong to folders that were set aside."""
    return [name for name in names if name.endswith(STRAY_SUFFIX)]


class Folders:
    """The folders of partitions in the directory `path`.

    Every method raises OSError if the system refuses.
    """

    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self._path = path

    def set_aside(self, folder: str) -> str:
        """Give a folder a name by which nobody takes it for a partition's; durably, that name."""
        names = set(self._files.list(self._path))
        aside, number = f"{folder}{STRAY_SUFFIX}", 1
        while aside in names:
            number += 1
            aside = f"{folder}.{number}{STRAY_SUFFIX}"
        self._files.rename(f"{self._path}/{folder}", f"{self._path}/{aside}")
        self._files.sync_directory(self._path)
        return aside

    def delete(self, doomed_ones: Collection[str]) -> None:
        """Delete, durably, the folders of what is named: a topic's id, or that and a partition."""
        for name in self._files.list(self._path):
            match = _FOLDER.fullmatch(name)
            if match is None or not {match[1], f"{match[1]}-{match[2]}"} & {*doomed_ones}:
                continue
            doomed = name
            if match[3] is None:
                doomed = name + DELETED_SUFFIX
                self._files.rename(f"{self._path}/{name}", f"{self._path}/{doomed}")
            self._remove(doomed)
        self._files.sync_directory(self._path)

    def remove_files(self, paths: Iterable[str]) -> None:
        """Remove files that are no part of a log any more; the next start tries what can't be."""
        for path in paths:
            try:
                # The topic may have been deleted meanwhile, with all of its files.
                with suppress(FileNotFoundError):
                    self._files.remove(path)
            except OSError as error:
                _logger.warning("%s can't be removed (%s): the next start will try", path, error)

    def remove_unfinished(self, names: set[str], topic_ids: Iterable[bytes]) -> None:
        """Remove those of `names` that no topic has: its creation was not finished."""
        ids = {topic_id.hex() for topic_id in topic_ids}
        for name in partition_folders(names & set(self._files.list(self._path))):
            match = _FOLDER.fullmatch(name)
            if match is None or match[1] in ids:
                continue
            if self._holds_batches(name):
                _logger.warning(
                    "%s/%s holds batches and belongs to no topic: it is left alone",
                    self._path,
                    name,
                )
            else:
                self._remove(name)

    def check_owned(self) -> None:
        """Whether there is none with batches in it, as nobody knows of any topic.

        Raises:
            LogDirectoryLost: there is one; what knew of its topic is missing.
        """
        for name in partition_folders(self._files.list(self._path)):
            if self._holds_batches(name):
                raise LogDirectoryLost(
                    f"{self._path} has partitions with records ({name}) and no topics.json:"
                    " restore that file from a copy, or start with an empty directory"
                )

    def tell_of_strays(self, names: Iterable[str]) -> None:
        """Say what is there of folders that were set aside: nothing else looks into them."""
        found = strays(names)
        if found:
            _logger.warning(
                "%d folders with %d bytes in %s are kept aside, as the cluster did not know their"
                " topics: if nobody misses what is in them, rm -r %s/*%s",
                *(len(found), sum(map(self.size_bytes, found))),
                *(self._path, self._path, STRAY_SUFFIX),
            )

    def size_bytes(self, folder: str) -> int:
        """Bytes of the segments in a folder, without their indexes."""
        size_bytes = 0
        for name in self._files.list(f"{self._path}/{folder}"):
            if name.endswith(LOG_SUFFIX):
                with closing(self._files.open(f"{self._path}/{folder}/{name}")) as file:
                    size_bytes += file.size()
        return size_bytes

    def _holds_batches(self, folder: str) -> bool:
        for name in self._files.list(f"{self._path}/{folder}"):
            if not name.endswith(LOG_SUFFIX):
                continue
            with closing(self._files.open(f"{self._path}/{folder}/{name}")) as file:
                if file.size():
                    return True
        return False

    def _remove(self, folder: str) -> None:
        for name in self._files.list(f"{self._path}/{folder}"):
            self._files.remove(f"{self._path}/{folder}/{name}")
        self._files.remove(f"{self._path}/{folder}")
