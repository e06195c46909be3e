"""ConnectDesk: what the console asks a Connect service, in the words of Kafka Connect's REST API.

`RemoteConnect` asks over HTTP. Its requests block, so they run in threads of its own. Rules of the
module: no redirect is followed, because it would take the password to another server; an answer has
a bound in bytes and in time.
"""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, Protocol
from urllib.parse import quote, urlsplit

import msgspec

from streamlog.console.pages.connector_pages import ConnectorRow, TaskRow
from streamlog.errors import ConfigError, ConnectionLost, UsageError
from streamlog.http_access.guarded_server import trusting
from streamlog.properties import read_properties

TIMEOUT_S: Final = 5.0
ANSWER_BYTES_MAX: Final = 16 * 1024 * 1024
THREADS: Final = 2
SAID_MAX: Final = 500
ACTIONS: Final[Mapping[str, tuple[str, str]]] = {
    "pause": ("PUT", "pause"),
    "resume": ("PUT", "resume"),
    "restart": ("POST", "restart?includeTasks=true"),
}
"""Each change as a method and the end of a path."""


class ConnectAccess(msgspec.Struct, frozen=True):
    """Where a Connect service is, and who asks."""

    url: str
    user: str = ""
    password: str = ""
    ca: str = ""
    """A PEM file with the authorities that are trusted; empty: those of the machine."""

    @classmethod
    def of(cls, given: str) -> ConnectAccess:
        """Return what a URL, or a file with `url`, `user`, `password` and `ca`, says.

        Raises:
            ConfigError: the URL is malformed, or the file can't be read or has another setting.
        """
        named = {"url": given} if "://" in given else read_properties(given)
        unknown = named.keys() - {*cls.__struct_fields__}
        if unknown:
            raise ConfigError(
                f"{given} has unknown settings: {', '.join(sorted(unknown))}; there are url, user,"
                " password and ca"
            )
        found = cls(**{"url": "", **named})
        parts = urlsplit(found.url)
        # A password in an address would be shown wherever the setting is.
        if parts.scheme not in {"http", "https"} or not parts.hostname or parts.username:
            raise ConfigError("web.connect: write http://HOST:8083, or a file with url, user, ...")
        return found


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        """Let the redirect be the answer, which is an error."""


class ConnectPort(Protocol):
    """Port: what answers requests of the REST API."""

    async def ask(self, method: str, path: str) -> bytes:
        """Return the answer to a request.

        Raises:
            ConnectionLost: there is no answer.
            UsageError: the request was refused.
        """

    def close(self) -> None:
        """End what asks."""


def refused(status: int, said: str, name: str = "the Connect service") -> UsageError:
    """Return the error of a request that was refused."""
    return UsageError(f"{name} refuses ({status}): {said[:SAID_MAX]}")


class RemoteConnect:
    """A Connect service, or another REST API, that answers over HTTP."""

    def __init__(
        self,
        access: ConnectAccess,
        *,
        name: str = "the Connect service",
        answers: Collection[int] = (),
    ) -> None:
        """Prepare to ask.

        Args:
            access: where it is, and who asks.
            name: what errors call it.
            answers: statuses from 400 on that are answers, and no refusals.
        """
        self._access, self._name, self._answers = access, name, answers
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="streamlog-console-connect")
        https = urllib.request.HTTPSHandler(context=trusting(access.ca))
        self._opener = urllib.request.build_opener(https, _NoRedirects)

    def close(self) -> None:
        """End the threads once their requests are answered."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def ask(self, method: str, path: str) -> bytes:
        """Return the answer to a request."""
        asked = partial(self._send, method, path)
        return await asyncio.get_running_loop().run_in_executor(self._threads, asked)

    def _send(self, method: str, path: str) -> bytes:
        access = self._access
        request = urllib.request.Request(f"{access.url.rstrip('/')}/{path}", method=method)  # noqa: S310 - http(s) alone, see `ConnectAccess.of`
        if access.user:
            both = b64encode(f"{access.user}:{access.password}".encode()).decode()
            request.add_header("authorization", f"Basic {both}")
        try:
            with self._opener.open(request, timeout=TIMEOUT_S) as answer:
                body: bytes = answer.read(ANSWER_BYTES_MAX + 1)
        except urllib.error.HTTPError as error:
            with error:
                if error.code in self._answers:
                    return error.read(ANSWER_BYTES_MAX)
                said = error.read(SAID_MAX).decode(errors="replace")
            raise refused(error.code, said, self._name) from error
        except (OSError, ValueError) as error:
            raise ConnectionLost(f"{self._name} at {access.url}: {error}") from error
        if len(body) > ANSWER_BYTES_MAX:
            raise ConnectionLost(f"{self._name} answers more than {ANSWER_BYTES_MAX} bytes")
        return body


class ConnectDesk:
    """Asks one Connect service."""

    def __init__(self, service: ConnectPort | None) -> None:
        """Prepare to ask; None: there is no service."""
        self._service = service

    def close(self) -> None:
        """End what asks."""
        if self._service is not None:
            self._service.close()

    @property
    def is_there(self) -> bool:
        """Whether a service is known."""
        return self._service is not None

    async def connectors(self) -> list[ConnectorRow]:
        """Return all connectors, by name.

        Raises:
            ConnectionLost: the service does not answer, or with what is no answer of Connect.
            UsageError: it refused.
        """
        answer = await self._ask("GET", "connectors?expand=info&expand=status")
        try:
            found = msgspec.convert(json.loads(answer), dict[str, _Expanded])
        except (ValueError, msgspec.ValidationError) as error:
            raise ConnectionLost(f"the Connect service answers otherwise: {error}") from error
        return [_row(name, each) for name, each in sorted(found.items())]

    async def change(self, name: str, action: str) -> None:
        """Pause, resume or restart a connector."""
        method, path = ACTIONS[action]
        await self._ask(method, f"connectors/{quote(name, safe='')}/{path}")

    async def _ask(self, method: str, path: str) -> bytes:
        if self._service is None:
            raise ConnectionLost("no Connect service is known")
        return await self._service.ask(method, path)


class _State(msgspec.Struct):
    state: str = ""
    worker_id: str = ""
    trace: str = ""
    id: int = 0


class _Status(msgspec.Struct):
    connector: _State = msgspec.field(default_factory=_State)
    tasks: list[_State] = []


class _Info(msgspec.Struct):
    type: str = ""
    config: dict[str, str | None] = {}


class _Expanded(msgspec.Struct):
    """What `?expand=info&expand=status` says of a connector; either may lack."""

    info: _Info = msgspec.field(default_factory=_Info)
    status: _Status = msgspec.field(default_factory=_Status)


def _row(name: str, found: _Expanded) -> ConnectorRow:
    return ConnectorRow(
        name=name,
        kind=found.info.type,
        state=found.status.connector.state,
        worker=found.status.connector.worker_id,
        trace=found.status.connector.trace,
        tasks=tuple(
            TaskRow(each.id, each.state, each.worker_id, each.trace) for each in found.status.tasks
        ),
        config={key: value or "" for key, value in found.info.config.items()},
    )
