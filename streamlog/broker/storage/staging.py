"""Staging: files of jobs in the data directory, which are in no log until they are published.

`_staging/<job>/<name>`, written by clients through the broker or, on the same machine, beside it.
Nothing in there counts; a job's folder goes when it was published or dropped. Rule of the file:
names are checked before they are part of a path.
"""

from __future__ import annotations

import re
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Final

from streamlog.broker.storage.files import make_durable_directory, write_whole
from streamlog.errors import LogError
from streamlog.protocol.error_codes import ErrorCode, error_for

if TYPE_CHECKING:
    from streamlog.broker.storage.files import Buffer, File, Files

STAGING: Final = "_staging"
NAME_CHARACTERS_MAX: Final = 200

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")


def check_staged_name(what: str, name: str) -> None:
    """Refuse what can't be the name of a job or of one of its files.

    Raises:
        LogError: INVALID_REQUEST.
    """
    if len(name) > NAME_CHARACTERS_MAX or _NAME.fullmatch(name) is None:
        raise _refused(
            f"{name!r} can't be {what}: use up to {NAME_CHARACTERS_MAX} letters, digits, '.', '_'"
            " and '-'"
        )


class Staging:
    """The staged files of one data directory."""

    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self._path = f"{path}/{STAGING}"

    def write(self, job_id: str, name: str, position: int, data: Buffer, *, is_last: bool) -> int:
        """Add a piece to a file; with the last one it is brought to disk.

        What was behind `position` goes: a piece may come again. Returned is the file's size.

        Raises:
            LogError: a name can't be one, or the file ends elsewhere.
            OSError: the disk refused.
        """
        check_staged_name("the id of a job", job_id)
        check_staged_name("the name of a staged file", name)
        folder = f"{self._path}/{job_id}"
        if position == 0:
            make_durable_directory(self._files, folder)
        with closing(self._files.open(f"{folder}/{name}", writable=True)) as file:
            if not 0 <= position <= file.size():
                raise _refused(
                    f"{name} of job {job_id} has {file.size()} bytes, and a piece came for byte"
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
        """A staged file, to be read.

        Raises:
            LogError: a name can't be one, or there is no such file.
            OSError: the disk refused.
        """
        check_staged_name("the id of a job", job_id)
        check_staged_name("the name of a staged file", name)
        try:
            return self._files.open(f"{self._path}/{job_id}/{name}")
        except FileNotFoundError:
            raise _refused(f"job {job_id} has staged no file {name}") from None

    def drop(self, job_id: str) -> None:
        """Remove the files of a job, if there are any.

        Raises:
            LogError: this can't be a job.
            OSError: the disk refused; some may be left.
        """
        check_staged_name("the id of a job", job_id)
        folder = f"{self._path}/{job_id}"
        # Two may be at it.
        with suppress(FileNotFoundError):
            for name in self._files.list(folder):
                self._files.remove(f"{folder}/{name}")
            self._files.remove(folder)


def _refused(why: str) -> LogError:
    return error_for(ErrorCode.INVALID_REQUEST, why)
