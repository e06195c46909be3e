"""User file: the users of HTTP servers with what their passwords are checked against.

A line is `NAME:scrypt:N:R:P:SALT:KEY` (RFC 7914; salt and key in base64), and `#` begins a comment.
One line, `:workers:KEY`, is the key with which the workers of an app sign their requests to each
other. `streamlog users add NAME --file FILE` makes the file.

Rule: the file has no password, and an error shows neither salts nor keys.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from base64 import b64decode, b64encode
from binascii import Error as NoBase64
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from streamlog.clock import Clock
from streamlog.errors import ConfigError
from streamlog.followed_files import FollowedFiles

FILE_BYTES_MAX: Final = 4 * 1024 * 1024
NAME_CHARACTERS_MAX: Final = 255
PASSWORD_CHARACTERS_MAX: Final = 1_024
WORKERS: Final = "workers"
_SALT_BYTES: Final = 16
_KEY_BYTES: Final = 32
COST: Final = (2**14, 8, 1)
"""N, R and P: 16 MiB of memory and some 40 ms for each check."""
_MEMORY_BYTES_MAX: Final = 64 * 1024 * 1024
_PARALLEL_MAX: Final = 16
_FIELDS: Final = 7
_FORM: Final = "NAME:scrypt:N:R:P:SALT:KEY"


@dataclass(frozen=True, slots=True)
class ScryptKey:
    """What a password is checked against."""

    n: int
    r: int
    p: int
    salt: bytes = field(repr=False)
    key: bytes = field(repr=False)

    def fits(self, password: str) -> bool:
        """Return whether this is the password; takes long on purpose."""
        found = _derive(password, self.salt, (self.n, self.r, self.p), len(self.key))
        return hmac.compare_digest(found, self.key)


@dataclass(frozen=True, slots=True)
class UserTable:
    """The users of a file."""

    users: Mapping[str, ScryptKey]
    workers_key: bytes | None = field(default=None, repr=False)
    """Signs the requests of an app's workers to each other; None: the file has none."""


def unknown_key() -> ScryptKey:
    """Return what the password of a user that does not exist is checked against: none fits."""
    return ScryptKey(*COST, secrets.token_bytes(_SALT_BYTES), secrets.token_bytes(_KEY_BYTES))


class UserFile:
    """The users of a file that may be replaced while the process runs."""

    def __init__(self, path: str, clock: Clock) -> None:
        """Read the file.

        Raises:
            ConfigError: it can't be read, a line is malformed, or it has no user.
        """
        self._path = Path(path)
        self._tables = FollowedFiles(
            partial(read_users, self._path), [self._path], clock, name="users"
        )

    @property
    def table(self) -> UserTable:
        """The users of this moment."""
        return self._tables.value

    @property
    def workers_key(self) -> bytes:
        """The key that the workers of an app sign with.

        Raises:
            ConfigError: the file has none.
        """
        found = self.table.workers_key
        if found is None:
            raise ConfigError(
                f"{self._path} lacks the line :{WORKERS}:KEY, with which the workers sign their"
                f" requests to each other; `streamlog users add NAME --file {self._path}` adds it"
            )
        return found


def read_users(path: Path) -> UserTable:
    """Return the users of a file.

    Raises:
        ConfigError: it can't be read, a line is malformed, or it has no user.
    """
    table = _parse(_read(path), path)
    if not table.users:
        raise ConfigError(f"{path} has no user: `streamlog users add NAME --file {path}` adds one")
    return table


def set_user(path: Path, name: str, password: str) -> None:
    """Give a user a password, in a file that is made if there is none.

    Raises:
        ConfigError: the name or the password can't be one, or the file is malformed.
    """
    if not 0 < len(name) <= NAME_CHARACTERS_MAX or ":" in name or not name.isprintable():
        raise ConfigError(
            f"user {name[:NAME_CHARACTERS_MAX]!r}: a name has 1 to {NAME_CHARACTERS_MAX} printable"
            " characters, without a colon"
        )
    if name.startswith("#") or name != name.strip():
        raise ConfigError(f"user {name!r}: a name begins with no # and has no space at its ends")
    if not 0 < len(password) <= PASSWORD_CHARACTERS_MAX:
        raise ConfigError(f"a password has 1 to {PASSWORD_CHARACTERS_MAX} characters")
    salt = secrets.token_bytes(_SALT_BYTES)
    key = _derive(password, salt, COST, _KEY_BYTES)
    cost = ":".join(map(str, COST))
    _replace_line(path, name, f"{name}:scrypt:{cost}:{_text(salt)}:{_text(key)}")


def remove_user(path: Path, name: str) -> None:
    """Remove a user from a file.

    Raises:
        ConfigError: there is no such user, or the file can't be read.
    """
    known = _parse(_read(path), path).users
    if name not in known:
        there = ", ".join(sorted(known)) or "none"
        raise ConfigError(f"{path} has no user {name!r}; its users: {there}")
    _replace_line(path, name, None)


def _replace_line(path: Path, name: str, line: str | None) -> None:
    """Write the file with another line of a user, whole or not at all."""
    text = _read(path) if path.exists() else "# Users of streamlog's HTTP servers.\n"
    if _parse(text, path).workers_key is None:
        text += f":{WORKERS}:{_text(secrets.token_bytes(_KEY_BYTES))}\n"
    kept = [each for each in text.splitlines() if each.split(":", 1)[0] != name or not name]
    lines = [*kept, *([] if line is None else [line])]
    # Its keys are for those alone who may start a worker; renamed, so that a reader finds it whole.
    made = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        mode = path.stat().st_mode & 0o777 if path.exists() else 0o600
        with os.fdopen(os.open(made, flags, mode), "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
        made.replace(path)
    except OSError as error:
        made.unlink(missing_ok=True)
        raise ConfigError(f"{path} can't be written: {error.strerror or error}") from error


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"the users in {path} can't be read: {error.strerror}") from None
    if len(data) > FILE_BYTES_MAX:
        raise ConfigError(f"{path} is larger than {FILE_BYTES_MAX} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text") from None


def _parse(text: str, path: Path) -> UserTable:
    users: dict[str, ScryptKey] = {}
    workers: bytes | None = None
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            if line.startswith(f":{WORKERS}:"):
                workers = b64decode(line.split(":", 2)[2], validate=True)
                _require(len(workers) >= _KEY_BYTES)
            else:
                name, key = _user_of(line)
                _require(name not in users)
                users[name] = key
        except (ValueError, NoBase64):
            # Without the line: it has a key.
            raise ConfigError(
                f"line {number} of {path} is not {_FORM}, each name once;"
                f" `streamlog users add NAME --file {path}` writes it"
            ) from None
    return UserTable(users, workers)


def _user_of(line: str) -> tuple[str, ScryptKey]:
    parts = line.split(":")
    _require(len(parts) == _FIELDS and parts[1] == "scrypt" and bool(parts[0]))
    n, r, p = (int(each) for each in parts[2:5])
    # What one check costs is bounded, as anyone may ask for one.
    _require(n > 1 and not n & (n - 1) and r > 0 and 0 < p <= _PARALLEL_MAX)
    _require(n * r * 128 <= _MEMORY_BYTES_MAX)
    salt, key = (b64decode(each, validate=True) for each in parts[5:])
    _require(len(salt) >= _SALT_BYTES // 2 and len(key) >= _SALT_BYTES)
    return parts[0], ScryptKey(n, r, p, salt, key)


def _require(holds: bool) -> None:  # noqa: FBT001 - what is required
    if not holds:
        raise ValueError


def _derive(password: str, salt: bytes, cost: tuple[int, int, int], size_bytes: int) -> bytes:
    n, r, p = cost
    return hashlib.scrypt(
        password.encode(), salt=salt, n=n, r=r, p=p,
        maxmem=2 * _MEMORY_BYTES_MAX, dklen=size_bytes,
    )  # fmt: skip


def _text(data: bytes) -> str:
    return b64encode(data).decode()
