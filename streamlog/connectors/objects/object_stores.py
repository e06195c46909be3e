"""Object stores: puts whole files, in a directory of this machine or in a store of a cloud.

Rule of the module: a file is complete or absent under its name, and durable when `put` returns.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import unquote, urlsplit

from streamlog.allowed_paths import check_path, directory_of, opener
from streamlog.connect import ConnectError, Refused, Retriable
from streamlog.connectors.store_refusals import refusal
from streamlog.errors import ConfigError, StreamlogError
from streamlog.metrics.build_info import install_command
from streamlog.serdes.erased_types import UserObject

SECRET_OPTIONS = {
    "s3": "secret_access_key",
    "s3a": "secret_access_key",
    "gs": "service_account_key",
    "az": "access_key",
    "adl": "access_key",
    "azure": "access_key",
    "abfs": "access_key",
    "abfss": "access_key",
}
"""The stores of clouds, by the schemes that obstore knows, and its names of their secrets."""
RETRY_TIMEOUT_S = 30
"""How long obstore repeats a request by itself; then the flush is aborted and tried again."""
PROBE: Final = ".streamlog-probe"
"""The name of an object that no program writes."""
REASON_CHARACTERS_MAX: Final = 1_000
_WRONG_LOGIN: Final = re.compile(
    "InvalidAccessKeyId|SignatureDoesNotMatch|InvalidToken|ExpiredToken|AuthenticationFailed"
)
"""Codes of a refusal that no role could change; others may be of one that writes and reads not."""
_temporary = itertools.count()


class ObjectStore(Protocol):
    """A place for files."""

    async def check(self) -> None:
        """Ask for a file: a wrong setting fails here, before the first flush.

        Raises:
            ConfigError: the store refuses.
            Retriable: the store can't be reached, or not now.
        """

    async def put(self, path: str, data: bytes) -> None:
        """Write a file, or replace it.

        Raises:
            ConfigError: the store refuses.
            ConnectError: the path is none that the store takes.
            Retriable: the store can't be reached, or not now.
        """


def local_path(url: str) -> Path | None:
    """Return the directory that a URL names, or None for the URL of a cloud's store.

    Raises:
        ConfigError: it is neither.
    """
    parsed = urlsplit(url)
    if parsed.scheme in SECRET_OPTIONS and parsed.netloc:
        return None
    path = unquote(parsed.path) if parsed.scheme == "file" else url
    # A bare word is rather a bucket whose scheme was forgotten than a directory.
    is_path = path.startswith(("/", "./", "../"))
    if (parsed.scheme not in {"", "file"}) or parsed.netloc or not is_path:
        raise ConfigError(
            f"url={url!r} is no store: write s3://BUCKET/PREFIX, gs://, az://, /path or ./path"
        )
    return Path(path)


def secret_option(url: str) -> str:
    """Return obstore's name of the secret of a cloud's store."""
    return SECRET_OPTIONS[urlsplit(url).scheme]


class LocalStore:
    """Files below a directory of this machine.

    Args:
        root: the directory; it is made when the first file is written.
        in_thread: calls a function that blocks.
    """

    def __init__(self, root: Path, in_thread: Callable[..., UserObject]) -> None:
        self._root = root
        self._in_thread = in_thread

    async def check(self) -> None:
        """Look whether the directory may be made and written."""
        await self._in_thread(self._check)

    def _check(self) -> None:
        known = next(each for each in (self._root, *self._root.absolute().parents) if each.exists())
        if not known.is_dir():
            raise ConfigError(f"url={str(self._root)!r}: {known} is a file, and no directory")
        # Not for good: an operator may give the right while the task waits.
        if not os.access(known, os.W_OK | os.X_OK):
            raise Retriable(f"directory {known} can't be written: Permission denied")

    async def put(self, path: str, data: bytes) -> None:
        """Write a file: under another name first, then renamed, each of them synced."""
        await self._in_thread(self._put, self._root / path, data)

    def _put(self, path: Path, data: bytes) -> None:
        check_path("url", path)
        path.parent.mkdir(parents=True, exist_ok=True)
        # A name of its own: a task that was replaced may still write the same file.
        hidden = path.with_name(f".{path.name}.{os.getpid()}-{next(_temporary)}.tmp")
        try:
            with open(hidden, "xb", opener=opener) as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            with directory_of(path) as (directory, name):
                whole = hidden if directory is None else hidden.name
                os.replace(whole, name, src_dir_fd=directory, dst_dir_fd=directory)
        finally:
            hidden.unlink(missing_ok=True)
        _sync_directory(path.parent)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class CloudStore:
    """Objects of S3, Google Cloud Storage or Azure, by obstore.

    Args:
        url: the bucket and a prefix.
        options: obstore's settings of the store, such as `region` and `access_key_id`.

    Raises:
        ConfigError: obstore is not installed, or does not know a setting.
    """

    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        self._url = url
        try:
            self._obstore: UserObject = import_module("obstore")
            stores: UserObject = import_module("obstore.store")
            self._errors: UserObject = import_module("obstore.exceptions")
        except ImportError as error:
            raise ConfigError(f"url={url!r} needs obstore: {install_command('objects')}") from error
        try:
            self._store: UserObject = stores.from_url(
                url,
                config=dict(options),
                client_options={"allow_http": options.get("endpoint", "").startswith("http:")},
                retry_config={
                    "max_retries": 5,
                    "retry_timeout": timedelta(seconds=RETRY_TIMEOUT_S),
                },
            )
        except (self._errors.BaseError, TypeError, ValueError) as error:
            raise ConfigError(f"the store of {url} can't be opened: {_one_line(error)}") from error
        except BaseException as error:
            # obstore panics at `allow_http` and others that are options of its client.
            if type(error).__name__ != "PanicException":
                raise
            raise ConfigError(f"the store of {url} can't be opened: options: {error}") from None

    async def check(self) -> None:
        """Ask for an object that is not there: a missing bucket or a wrong key fails here."""
        try:
            await self._obstore.get_async(self._store, PROBE)
        except self._errors.PermissionDeniedError as error:
            if _WRONG_LOGIN.search(str(error)):
                raise self._failure(error) from error
        except (FileNotFoundError, self._errors.NotFoundError) as error:
            if refusal(_one_line(error)):
                raise self._failure(error) from error
        except self._errors.BaseError as error:
            raise self._failure(error) from error

    async def put(self, path: str, data: bytes) -> None:
        """Write an object, in parts if it is large."""
        try:
            await self._obstore.put_async(self._store, path, data)
        except self._errors.InvalidPathError as error:
            raise ConnectError(f"{self._url} takes no path {path}: {_one_line(error)}") from error
        # A bucket that does not exist is a file that is not found.
        except (FileNotFoundError, self._errors.BaseError) as error:
            raise self._failure(error) from error

    def _failure(self, error: Exception) -> StreamlogError:
        why = _one_line(error)
        # No record is at fault, so no policy of records may decide.
        if refused := refusal(why):
            return Refused(f"{self._url}: {refused}")
        return Retriable(f"{self._url}: {why}")


def _one_line(error: Exception) -> str:
    # Behind an empty line there is the error as a structure of Rust.
    text = str(error).partition("\n\n")[0]
    return " ".join(text.split())[:REASON_CHARACTERS_MAX] or type(error).__name__
