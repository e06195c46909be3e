"""Folders, Staging: the identity, the partition folders and the staging area of a data directory.

Formatting: an empty directory gets the identity of a node. A broker of a cluster needs that before
it starts; a single broker formats its directory when it starts.

Folders: a partition has the folder `p-<topic id>-<number>`. It is named by id and not by topic
name, so a topic that is created again never finds its old files.

Staging: `_staging/<job>/<name>` contains files that clients write through the broker or, on the
    same machine, directly. They are in no log until they are published; a job's folder is removed
    when the job is published or dropped.

Rules of this module: a folder that contains batches is only removed if the deletion of its topic
was recorded before; an unknown folder is left alone; names are checked before they become part of a
path. Not done here: opening the logs (`log_directory`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Final

from streamlog import repeated
from streamlog.broker.storage.catalog import Catalog, Identity, new_id
from streamlog.broker.storage.disk.files import (
    Files,
    directory_error,
    make_durable_directory,
    names_in,
    write_whole,
)
from streamlog.broker.storage.disk.os_files import OsFiles
from streamlog.broker.storage.log.segment import DELETED_SUFFIX, LOG_SUFFIX
from streamlog.errors import ConfigError, LogDirectoryLost, LogError
from streamlog.protocol.error_codes import ErrorCode, error_for

if TYPE_CHECKING:
    from streamlog.broker.config.broker import BrokerConfig
    from streamlog.broker.storage.disk.files import Buffer, File


_FOLDER = re.compile(r"p-([0-9a-f]{32})-(\d+)(\.deleted)?")
STRAY_SUFFIX = "-stray"
"""The suffix of folders whose topic the cluster does not know; nothing reads them."""

_logger = repeated.logger(__name__)


def partition_folder(topic_id: bytes, partition: int) -> str:
    """Return the name of a partition's folder in the data directory."""
    return f"p-{topic_id.hex()}-{partition}"


def partition_folders(names: Iterable[str]) -> list[str]:
    """Return the names of partition folders, those being deleted included."""
    return sorted(name for name in names if _FOLDER.fullmatch(name))


def strays(names: Iterable[str]) -> list[str]:
    """Return the names of stray folders."""
    return [name for name in names if name.endswith(STRAY_SUFFIX)]


class Folders:
    """The partition folders in the directory `path`.

    Every method raises OSError if the system refuses.
    """

    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self._path = path

    def rename_stray(self, folder: str) -> str:
        """Durably rename a folder, so that it belongs to no partition; return the new name."""
        names = set(self._files.list(self._path))
        stray, number = f"{folder}{STRAY_SUFFIX}", 1
        while stray in names:
            number += 1
            stray = f"{folder}.{number}{STRAY_SUFFIX}"
        self._files.rename(f"{self._path}/{folder}", f"{self._path}/{stray}")
        self._files.sync_directory(self._path)
        return stray

    def delete(self, keys: Collection[str]) -> None:
        """Durably delete the folders of topics, by id, or of partitions, by id and number."""
        for name in self._files.list(self._path):
            match = _FOLDER.fullmatch(name)
            if match is None or not {match[1], f"{match[1]}-{match[2]}"} & {*keys}:
                continue
            folder = name
            if match[3] is None:
                # Renamed first: a crash while its files are removed must not leave a folder that
                # looks like a partition with a damaged log.
                folder = name + DELETED_SUFFIX
                self._files.rename(f"{self._path}/{name}", f"{self._path}/{folder}")
            self._remove(folder)
        self._files.sync_directory(self._path)

    def remove_files(self, paths: Iterable[str]) -> None:
        """Remove files that are no longer part of a log; the next start retries failures."""
        for path in paths:
            try:
                # The topic may have been deleted meanwhile, with all its files.
                with suppress(FileNotFoundError):
                    self._files.remove(path)
            except OSError as error:
                _logger.warning("%s can't be removed (%s): the next start tries again", path, error)

    def remove_unfinished(self, names: set[str], topic_ids: Iterable[bytes]) -> None:
        """Remove the empty folders of topics whose creation was not finished."""
        ids = {topic_id.hex() for topic_id in topic_ids}
        for name in partition_folders(names & set(self._files.list(self._path))):
            match = _FOLDER.fullmatch(name)
            if match is None or match[1] in ids:
                continue
            if self._holds_batches(name):
                _logger.warning(
                    "%s/%s contains batches and belongs to no topic: it is left unchanged",
                    self._path,
                    name,
                )
            else:
                self._remove(name)

    def check_owned(self) -> None:
        """Check that no folder contains batches, because the list of topics is missing.

        Raises:
            LogDirectoryLost: a folder contains batches.
        """
        for name in partition_folders(self._files.list(self._path)):
            if self._holds_batches(name):
                raise LogDirectoryLost(
                    f"{self._path} has partitions with records ({name}) and no topics.json:"
                    " restore that file from a copy, or start with an empty directory"
                )

    def log_strays(self, names: Iterable[str]) -> None:
        """Log the number and size of stray folders, because nothing else reads them."""
        found = strays(names)
        if found:
            _logger.warning(
                "%s has partitions of topics that the cluster does not know (folders: %d, bytes:"
                " %d); if nothing in them is needed, remove them: rm -r %s/*%s",
                *(self._path, len(found), sum(map(self.size_bytes, found))),
                *(self._path, STRAY_SUFFIX),
            )

    def size_bytes(self, folder: str) -> int:
        """Return the bytes of the segments in a folder, without their indexes.

        A folder that does not exist has 0 bytes: nothing has been appended yet.
        """
        size_bytes = 0
        for name in names_in(self._files, f"{self._path}/{folder}"):
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


def format_directory(
    path: str,
    *,
    node_id: int,
    cluster_id: str | None = None,
    rejoins: bool = False,
    files: Files | None = None,
) -> Identity:
    """Make a directory the data directory of a node of this cluster, or of a new cluster.

    With `rejoins`, the node existed before and its directory is lost.

    Raises:
        LogDirectoryError: it belongs to a node already, or the disk refused.
    """
    files = OsFiles() if files is None else files
    catalog = Catalog(files, path)
    try:
        make_durable_directory(files, path)
        known = catalog.identity()
        if known is not None:
            raise LogDirectoryLost(
                f"{path} belongs to node {known.node_id} of cluster {known.cluster_id} already: use"
                " another directory, or remove this one"
            )
        identity = Identity(
            cluster_id=cluster_id or new_id(),
            node_id=node_id,
            directory_id=new_id(),
            rejoins=rejoins,
        )
        catalog.write_identity(identity)
    except OSError as error:
        raise directory_error(error, path) from error
    return identity


def identify_directory(
    catalog: Catalog, path: str, names: set[str], config: BrokerConfig
) -> Identity:
    """Return the identity of the directory at `path`, which contains `names`.

    A directory without an identity gets the identity of a single broker.

    Raises:
        LogDirectoryLost: the identity is missing, or the directory has to be formatted first.
        ConfigError: it belongs to another node.
        OSError: the disk refused.
    """
    identity = catalog.identity()
    if identity is None:
        left = partition_folders(names)
        if left:
            raise LogDirectoryLost(
                f"{path} has partitions ({left[0]}) and no meta.properties: restore that"
                " file from a copy, or start with an empty directory"
            )
        if config.quorum.voters:
            raise LogDirectoryLost(_not_of_cluster_message(path, config.node_id))
        identity = Identity(cluster_id=new_id(), node_id=config.node_id, directory_id=new_id())
        catalog.write_identity(identity)
    if identity.metadata_id:
        raise ConfigError(
            f"{path} is not the first directory of its broker, where its partitions are listed: put"
            f" the directory with the id {identity.metadata_id} first in log.dirs"
        )
    if identity.node_id != config.node_id:
        raise ConfigError(
            f"{path} belongs to node {identity.node_id}, and this broker is configured as"
            f" node {config.node_id}: change node.id, or use another directory"
        )
    return identity


def _not_of_cluster_message(path: str, node_id: int) -> str:
    return (
        f"{path} is not the data directory of a cluster node yet, and controller.quorum.voters"
        f" names voters: `streamlog cluster init --node {node_id} --cluster-id ID --data {path}`"
        f" makes it one; add --rejoin if node {node_id} existed before and its directory is lost"
    )


STAGING: Final = "_staging"
NAME_CHARACTERS_MAX: Final = 200

# No dot at the beginning: the name is part of a path, and `..` would leave the folder.
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")


def check_staged_name(what: str, name: str) -> None:
    """Check the name of a job, or of one of its files.

    Raises:
        LogError: INVALID_REQUEST.
    """
    if len(name) > NAME_CHARACTERS_MAX or _NAME.fullmatch(name) is None:
        raise _invalid_request(
            f"{name!r} can't be {what}: use up to {NAME_CHARACTERS_MAX} letters, digits, '.', '_'"
            " and '-'"
        )


class Staging:
    """The staged files of one data directory."""

    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self._path = f"{path}/{STAGING}"

    def write(self, job_id: str, name: str, position: int, data: Buffer, *, is_last: bool) -> int:
        """Write a piece of a file at `position`; sync the file with the last piece.

        Bytes after `position` are removed, because a client may send a piece again. Returns the
        size of the file.

        Raises:
            LogError: a name is invalid, or the file ends before `position`.
            OSError: the disk refused.
        """
        check_staged_name("the id of a job", job_id)
        check_staged_name("the name of a staged file", name)
        folder = f"{self._path}/{job_id}"
        if position == 0:
            make_durable_directory(self._files, folder)
        with closing(self._files.open(f"{folder}/{name}", writable=True)) as file:
            if not 0 <= position <= file.size():
                raise _invalid_request(
                    f"{name} of job {job_id} has {file.size()} bytes, but the piece begins at byte"
                    f" {position}: begin again at 0"
                )
            file.truncate(position)
            write_whole(file, data, position)
            if is_last:
                file.sync()
        if is_last:
            self._files.sync_directory(folder)
        return position + len(data)

    def open(self, job_id: str, name: str) -> File:
        """Open a staged file for reading.

        Raises:
            LogError: a name is invalid, or there is no such file.
            OSError: the disk refused.
        """
        check_staged_name("the id of a job", job_id)
        check_staged_name("the name of a staged file", name)
        try:
            return self._files.open(f"{self._path}/{job_id}/{name}")
        except FileNotFoundError:
            raise _invalid_request(f"job {job_id} has staged no file {name}") from None

    def drop(self, job_id: str) -> None:
        """Remove the files of a job, if there are any.

        Raises:
            LogError: the job id is invalid.
            OSError: the disk refused; some may be left.
        """
        check_staged_name("the id of a job", job_id)
        folder = f"{self._path}/{job_id}"
        # Another request may be removing them too.
        with suppress(FileNotFoundError):
            for name in self._files.list(folder):
                self._files.remove(f"{folder}/{name}")
            self._files.remove(folder)


def _invalid_request(why: str) -> LogError:
    return error_for(ErrorCode.INVALID_REQUEST, why)
