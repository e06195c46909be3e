"""RedisServer: where a server is, how to connect to it, and what its errors mean.

Rules of the module:

- Calls block, and run in a thread. The asynchronous client of the library (8.1) loses cancellations
  now and then, and a task that was cancelled would not end.
- Nothing is retried here, since a command whose answer is lost may have run. A server that can't
  answer now is `Retriable`; one that refuses the login or a command is a `ConfigError`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from redis import Redis, exceptions
from redis.backoff import NoBackoff
from redis.retry import Retry

from streamlog.connect import ConnectError, Refused, Retriable, Secret
from streamlog.connectors.client_tls import ClientTls, split_server_url
from streamlog.durations import Dur, duration_ms
from streamlog.errors import ConfigError

PORTS = {"redis": 6379, "rediss": 6379}
TRANSIENT_CODES = frozenset({
    "BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "MISCONF", "NOREPLICAS", "OOM", "READONLY",
    "TRYAGAIN", "UNBLOCKED",
})  # fmt: skip
"""The codes of answers after which the same command may succeed later."""
REFUSAL_CODES = frozenset({"NOAUTH", "NOPERM", "WRONGPASS"})
"""The codes of answers by which a user may not log in, or not run a command."""
CODE = re.compile(r"""(?:^|\(["'])([A-Z]+) """)
"""The code of an answer. Of a pipeline, it stands in the quotes behind the command's text."""


@dataclass(frozen=True, slots=True)
class RedisServer:
    """The settings of a server.

    Attributes:
        url: `redis://HOST:PORT/DATABASE`, or `rediss://` for TLS.
        user: the user; None for the default one.
        password: its password.
        tls: the files of TLS, for `rediss://`.
        timeout: how long an answer may take.
    """

    url: str
    user: str | None
    password: Secret | None
    tls: ClientTls | None
    timeout: Dur

    def check(self) -> None:
        """Raise ConfigError if a setting is none."""
        if "sentinel" in self.url.partition("://")[0]:
            raise ConfigError(
                "url names Sentinels, which are not supported: give the address of the primary, "
                "such as a name or proxy that follows it"
            )
        parts, _ = split_server_url(self.url, PORTS)
        if parts.query or parts.fragment:
            raise ConfigError("url takes no parameters: write redis://HOST:PORT/DATABASE")
        if (text := parts.path.strip("/")) and not (text.isascii() and text.isdecimal()):
            raise ConfigError(f"url names the database {text!r}: write a number, such as /0")
        if self.tls is not None:
            self.tls.check()
            if parts.scheme != "rediss":
                raise ConfigError("tls needs a url that begins with rediss://")
        # The library would log in as the default user, without a word.
        if self.user is not None and self.password is None:
            raise ConfigError("user needs password")
        if not duration_ms(self.timeout):
            raise ConfigError(f"timeout={self.timeout!r} must be longer than 0")

    def client(self) -> Redis:
        """Return a client, which connects with its first command."""
        parts, port = split_server_url(self.url, PORTS)
        wait_s = duration_ms(self.timeout) / 1000
        tls = self.tls or ClientTls()
        return Redis(
            host=parts.hostname or "",
            port=port,
            db=int(parts.path.strip("/") or 0),
            username=self.user,
            password=None if self.password is None else self.password.reveal(),
            socket_timeout=wait_s,
            socket_connect_timeout=wait_s,
            # The library would send a script again whose answer was lost.
            retry=Retry(NoBackoff(), 0),
            # Answers have one shape on all servers, those before Redis 6 included.
            protocol=2,
            ssl=parts.scheme == "rediss",
            ssl_ca_certs=tls.ca,
            ssl_certfile=tls.certificate,
            ssl_keyfile=tls.key,
        )

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turn errors of the library into those of the port.

        Raises:
            Retriable: the server can't be reached, or can't answer now.
            Refused: it refuses the login, or lacks a right for the user.
            ConnectError: it can't run the command.
        """
        try:
            yield
        except (exceptions.AuthenticationError, exceptions.AuthorizationError) as error:
            raise Refused(
                f"{self.url} refuses the login: {error}; look at user and password"
            ) from error
        except (exceptions.ConnectionError, exceptions.TimeoutError) as error:
            raise Retriable(f"{self.url}: {type(error).__name__}: {error}") from error
        except (exceptions.ReadOnlyError, exceptions.OutOfMemoryError) as error:
            raise Retriable(f"{self.url}: {error}") from error
        except exceptions.RedisError as error:
            found = CODE.search(str(error))
            code = "" if found is None else found[1]
            if code in REFUSAL_CODES or isinstance(error, exceptions.NoPermissionError):
                raise Refused(
                    f"{self.url} refuses the user: {error}; grant the right with ACL SETUSER"
                ) from error
            kind = Retriable if code in TRANSIENT_CODES else ConnectError
            raise kind(f"{self.url}: {error}") from error


def look_at_server(client: Redis, url: str) -> Mapping[str, object]:
    """Return what a server says of itself.

    Raises:
        ConfigError: it is a member of a cluster, or a Sentinel.
    """
    info: Mapping[str, object] = client.info()
    # A member of a cluster would answer some keys, and redirect the others to its peers.
    mode = info.get("redis_mode")
    if mode == "cluster":
        raise ConfigError(
            f"{url} belongs to a Redis Cluster, which is not supported: rows and offsets of one "
            "commit have to be on one server"
        )
    if mode == "sentinel":
        raise ConfigError(f"{url} is a Sentinel: give the address of the primary that it watches")
    return info
