"""HTTP client: what the poller, the reader of events and the sink have in common.

Rule of the module: the status decides. 408, 425, 429 and 5xx are tried again, not before the time
that `Retry-After` asks for; any other status but 2xx is a refusal. For a sink, `BLAMES_CONTENT` are
about what was sent, and the rest are about its settings, whatever is sent. Redirects are not
followed, as they would carry the token to another server.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime

import httpx

from streamlog.connect import ConnectError, Refused, Retriable, Secret
from streamlog.durations import Dur, duration_ms
from streamlog.errors import ConfigError

TRIED_AGAIN = frozenset({408, 425, 429})
BLAMES_CONTENT = frozenset({400, 409, 413, 422})
"""Statuses that blame what was sent. 415 is not among them: `content_type` is a setting."""
RETRY_AFTER_MAX = timedelta(hours=1)
"""The longest wait that a server can ask for."""
ANSWER_SHOWN = 300
"""Characters of an answer in the text of an error."""


def check_url(url: str, setting: str = "url", login: str = "token or headers") -> None:
    """Raise ConfigError if the URL of a setting is none of HTTP."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ConfigError(f"{setting}={url!r} is no URL: {error}") from error
    if parsed.scheme not in {"http", "https"} or not parsed.host:
        raise ConfigError(f"{setting}={url!r} is no URL of http or https")
    if parsed.userinfo:
        raise ConfigError(f"{setting} has a password, which would be shown: use {login}")


@asynccontextmanager
async def http_client(
    headers: Mapping[str, str], token: Secret | None, wait: Dur
) -> AsyncIterator[httpx.AsyncClient]:
    """Open a client with headers and a token (`Authorization: Bearer`); `wait`: for any answer."""
    sent = dict(headers)
    if token is not None:
        sent["Authorization"] = f"Bearer {token.reveal()}"
    async with httpx.AsyncClient(
        headers=sent, timeout=duration_ms(wait) / 1000, follow_redirects=False
    ) as client:
        yield client


@asynccontextmanager
async def errors_of(url: str) -> AsyncIterator[None]:
    """Turn httpx's errors of a connection into those of the port.

    Raises:
        Retriable: the server can't be reached, or does not answer.
        ConfigError: a header can't be sent, such as a token with a line end.
    """
    try:
        yield
    except httpx.TransportError as error:
        if isinstance(error, httpx.LocalProtocolError) and "Illegal header" in str(error):
            # Without the cause, whose text has the header, and so perhaps the token.
            raise ConfigError(
                f"{url} can't be asked: token or headers has a character that no header may have, "
                "such as a line end"
            ) from None
        raise Retriable(f"{url}: {type(error).__name__}: {error}") from error


def check_answer(answer: httpx.Response, now: datetime) -> None:
    """Raise unless the status is 2xx.

    Raises:
        Retriable: the server can't answer now.
        ConnectError: it refuses.
    """
    if answer.is_success:
        return
    message = f"{answer.request.method} {answer.request.url} was answered with {answer.status_code}"
    if answer.status_code in TRIED_AGAIN or answer.is_server_error:
        raise Retriable(message, after=retry_after(answer, now))
    raise ConnectError(f"{message}: {shown(answer)}")


def check_taken(answer: httpx.Response, now: datetime) -> None:
    """Raise unless the server has taken what was sent.

    Raises:
        Retriable: the server can't answer now.
        ConnectError: it blames what was sent.
        Refused: it would refuse anything: the login, the URL or the method is wrong.
    """
    try:
        check_answer(answer, now)
    except Retriable:
        raise
    except ConnectError as error:
        if answer.status_code in BLAMES_CONTENT:
            raise
        said = " ".join(str(error).split())
        raise Refused(f"{said}; look at the URL, the login, the headers and method") from error


def shown(answer: httpx.Response) -> str:
    """Return the beginning of an answer's text, if it was read."""
    return answer.text[:ANSWER_SHOWN] if answer.is_closed else ""


def retry_after(answer: httpx.Response, now: datetime) -> timedelta | None:
    """Return how long a server asks to wait (RFC 9110, 10.2.3), bounded; None if it does not."""
    text = answer.headers.get("Retry-After", "")
    if text.isdecimal():
        # A number with many digits is more than `timedelta` holds.
        wait = timedelta(seconds=min(int(text[:9]), int(RETRY_AFTER_MAX.total_seconds())))
    else:
        try:
            wait = parsedate_to_datetime(text) - now
        except (ValueError, TypeError):
            return None
    bounded = min(max(wait, timedelta()), RETRY_AFTER_MAX)
    return timedelta(seconds=int(bounded.total_seconds()))
