"""Allowed paths: the directories below which the connectors of this process may use files.

A property of the process, as its user is: `streamlog connect` sets it before anything else. In an
app, whose code names the paths, everything is allowed.

Rules: a path counts as what it leads to, links resolved. A file is opened step by step from the
allowed directory, and no step follows a link, so a link that is put there between the check and the
opening leads nowhere.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import Final

from streamlog.errors import ConfigError

OPTION: Final = "--allow-path"
_DIRECTORY: Final = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
_FILE_MODE: Final = 0o666
_PATH_STARTS: Final = ("/", "~", "./", "../", "file:")
_LINKS: Final = (errno.ELOOP, errno.ENOTDIR)


class PathNotAllowed(ConfigError):
    """A connector names a file that it may not use."""


class _Allowed:
    """The directories of this process; None: all."""

    directories: tuple[Path, ...] | None = None


def allow_paths(directories: Sequence[Path] | None) -> None:
    """Let connectors use files below these directories, and no others; None: all files.

    Raises:
        ConfigError: one of them is no directory.
    """
    for each in directories or ():
        if not each.is_dir():
            raise ConfigError(f"{OPTION} {each}: there is no such directory")
    found = None if directories is None else tuple(each.resolve() for each in directories)
    _Allowed.directories = found


@contextmanager
def allowed_paths(directories: Sequence[Path] | None) -> Iterator[None]:
    """Allow these directories within the block, as `allow_paths` does."""
    before = _Allowed.directories
    allow_paths(directories)
    try:
        yield
    finally:
        _Allowed.directories = before


def is_allowed(path: str | Path) -> bool:
    """Return whether connectors may use a file, or what is below a directory."""
    allowed = _Allowed.directories
    return allowed is None or _root_of(_real(path), allowed) is not None


def check_path(setting: str, path: str | Path) -> None:
    """Refuse a path that leads to a file which connectors may not use.

    Args:
        setting: the setting that has it, for the message.
        path: the path; it need not exist.

    Raises:
        PathNotAllowed: it does; the message names the option that allows it.
    """
    if not is_allowed(path):
        raise _refusal(setting, path)


def check_paths_in(setting: str, options: Mapping[str, str]) -> None:
    """Refuse options of a library whose values are paths of files that may not be used.

    Raises:
        PathNotAllowed: a value is one.
    """
    if _Allowed.directories is None:
        return
    for name, value in options.items():
        if value.startswith(_PATH_STARTS):
            path = value.removeprefix("file:").removeprefix("//")
            check_path(f"{setting}.{name}", Path(path).expanduser())


def opener(path: str, flags: int) -> int:
    """Open a file that connectors may use; for `open(path, mode, opener=opener)`.

    Raises:
        PathNotAllowed: they may not use it.
        OSError: it can't be opened.
    """
    with directory_of(path) as (directory, name):
        follows = 0 if directory is None else os.O_NOFOLLOW
        try:
            return os.open(name, flags | os.O_CLOEXEC | follows, _FILE_MODE, dir_fd=directory)
        except OSError as error:
            if follows and error.errno == errno.ELOOP:
                raise _refusal("path", path) from None
            raise


@contextmanager
def directory_of(path: str | Path) -> Iterator[tuple[int | None, str]]:
    """Yield the open directory of a file that connectors may use, and the file's name in it.

    The two are for functions with `dir_fd`. Where everything is allowed, they are None and the path
    as it is. The name is no link at the time of the call; open it with `O_NOFOLLOW`.

    Raises:
        PathNotAllowed: they may not use the file.
        OSError: the directory can't be opened.
    """
    if _Allowed.directories is None:
        yield None, str(path)
        return
    with _directory_below(_Allowed.directories, path) as found:
        yield found


def read_below(directories: Sequence[str], path: str, bytes_max: int) -> bytes:
    """Return the content of a regular file below one of these directories.

    The rules are those of this module: links are resolved first, and none is followed afterwards.

    Args:
        directories: absolute paths; one that does not exist allows nothing.
        path: the file.
        bytes_max: the most that it may have.

    Raises:
        PathNotAllowed: it leads to none of them.
        OSError: it can't be read.
        ValueError: it is no path, not a regular file, or larger.
    """
    with _directory_below([_real(each) for each in directories], path) as (directory, name):
        # A pipe without a writer would make the opening wait.
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            opened = os.open(name, flags, dir_fd=directory)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise _refusal("path", path) from None
            raise
    try:
        # A device or a pipe has no end, or none that comes.
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            raise ValueError("it is not a regular file")
        content = FileIO(opened, closefd=False).read(bytes_max + 1)
    finally:
        os.close(opened)
    if len(content) > bytes_max:
        raise ValueError(f"it has more than {bytes_max} bytes")
    return content


@contextmanager
def _directory_below(directories: Sequence[Path], path: str | Path) -> Iterator[tuple[int, str]]:
    """Yield the open directory of a file below one of these, and its name; see `directory_of`."""
    real = _real(path)
    root = _root_of(real, directories)
    if root is None or root == real:
        raise _refusal("path", path)
    *steps, name = real.relative_to(root).parts
    opened = os.open(root, _DIRECTORY)
    try:
        for step in steps:
            following = _step(opened, step, path)
            os.close(opened)
            opened = following
        yield opened, name
    finally:
        os.close(opened)


def _real(path: str | Path) -> Path:
    # `Path.resolve` raises a RuntimeError for links in a circle. Here, they lead to themselves.
    return Path(os.path.realpath(path))


def _step(directory: int, name: str, path: str | Path) -> int:
    try:
        return os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=directory)
    except OSError as error:
        # It was a directory when the path was resolved.
        if error.errno in _LINKS:
            raise _refusal("path", path) from None
        raise


def _root_of(real: Path, directories: Sequence[Path]) -> Path | None:
    found = (each for each in directories if real.is_relative_to(each))
    return next(found, None)


def _refusal(setting: str, path: str | Path) -> PathNotAllowed:
    allowed = ", ".join(map(str, _Allowed.directories or ()))
    where = f"leads to none of the directories of {OPTION} ({allowed})" if allowed else "is a file"
    return PathNotAllowed(
        f"{setting}={str(path)!r} {where}: start `streamlog connect` with {OPTION} DIR to let"
        " connectors use files below DIR"
    )
