"""JwkSet: the keys that token signatures are checked with, loaded and refreshed.

A thread reads a file or an https URL when the broker starts, periodically, and when a token names
an unknown key; the latter at most every `MISSING_KEY_MS`, because any client can name one.
Without keys every token is refused, and the log says why.
"""

from __future__ import annotations

import asyncio
import json
import urllib.parse

from streamlog import repeated
from streamlog.broker.security.tokens import ALGORITHMS, Key
from streamlog.broker.storage.disk.files import read_file
from streamlog.broker.storage.disk.os_files import OsFiles
from streamlog.errors import ConfigError
from streamlog.metrics.build_info import install_command

FETCH_TIMEOUT_MS = 10_000
RETRY_MS = 10_000
"""How soon a failed fetch is repeated, unless the refresh interval is shorter."""
MISSING_KEY_MS = 10_000
"""The minimum time between a fetch and another one for an unknown key."""
SET_BYTES_MAX = 1024 * 1024
LOCAL = ("localhost", "127.0.0.1", "::1")

_log = repeated.logger(__name__)


class JwkSet:
    """The keys at a URL. Call it with a key id to get the keys that may have signed a token."""

    def __init__(self, url: str, *, refresh_ms: int) -> None:
        """Check the URL; `open` fetches. `refresh_ms` is the interval of later fetches.

        Raises:
            ConfigError: the URL's scheme is not supported, or PyJWT is not installed.
        """
        try:
            import jwt  # noqa: F401, PLC0415 - an extra
        except ImportError:
            raise ConfigError(
                f"signed tokens need the extra `oauth`: {install_command('oauth')}"
            ) from None
        self._url = urllib.parse.urlsplit(url)
        # Over plain http, an attacker in the network could replace the keys by their own, and sign
        # tokens for any user.
        is_local = self._url.scheme == "http" and self._url.hostname in LOCAL
        if self._url.scheme not in ("https", "file") and not is_local:
            raise ConfigError(
                f"sasl.oauthbearer.jwks.endpoint.url={url!r}: use an https:// or file:// URL"
            )
        self._refresh_ms = refresh_ms
        self._keys: list[Key] = []
        self._fetching: asyncio.Future[bytes] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._fetched_s = 0.0
        self._closed = False

    def __call__(self, name: str | None) -> list[Key]:
        """Return the keys with this id (`kid`), or all keys for a token without an id.

        An unknown id starts a fetch in the background: this token is refused, a later one may pass.
        """
        found = [key for key in self._keys if name is None or key.name == name]
        if not found:
            since_ms = (asyncio.get_running_loop().time() - self._fetched_s) * 1000
            if since_ms >= MISSING_KEY_MS:
                self._fetch()
        return found

    async def open(self) -> None:
        """Fetch the keys for the first time; a failure is logged, and the fetch repeated later."""
        self._fetch()
        if self._fetching is not None:
            await asyncio.wait([self._fetching])

    def close(self) -> None:
        """Stop fetching; a fetch in progress is ignored when it ends."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _fetch(self) -> None:
        if self._fetching is not None or self._closed:
            return
        # This fetch takes the place of the next periodic one, which its end schedules anew.
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        # The start counts, and a failure too: unknown keys then don't cause more than one fetch per
        # `MISSING_KEY_MS` at a server that is down.
        self._fetched_s = loop.time()
        self._fetching = loop.run_in_executor(None, self._read)
        self._fetching.add_done_callback(self._on_fetched)

    def _on_fetched(self, fetching: asyncio.Future[bytes]) -> None:
        self._fetching = None
        if self._closed or fetching.cancelled():
            return
        wait_ms = self._refresh_ms
        try:
            self._keys = _keys(fetching.result())
        except (OSError, ValueError, KeyError, TypeError) as error:
            where = self._url.geturl()
            _log.warning(
                "could not load the keys at %s, keeping the previous ones: %s", where, error
            )
            wait_ms = min(wait_ms, RETRY_MS)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(wait_ms / 1000, self._fetch)

    def _read(self) -> bytes:
        if self._url.scheme == "file":
            return read_file(OsFiles(), urllib.parse.unquote(self._url.path))
        from urllib.request import urlopen  # noqa: PLC0415 - a broker without tokens starts faster

        url = self._url.geturl()
        # The constructor has checked the scheme.
        with urlopen(url, timeout=FETCH_TIMEOUT_MS / 1000) as answer:  # noqa: S310
            data: bytes = answer.read(SET_BYTES_MAX + 1)
        if len(data) > SET_BYTES_MAX:
            raise ValueError(f"the key set is larger than {SET_BYTES_MAX} bytes")
        return data


def _keys(data: bytes) -> list[Key]:
    """Return the keys of a JSON Web Key Set (RFC 7517) that can check signatures.

    Raises:
        ValueError, KeyError, TypeError: the data is not a key set, or no key can be used.
    """
    import jwt  # noqa: PLC0415 - an extra

    found = []
    for each in json.loads(data)["keys"]:
        if not isinstance(each, dict):
            raise TypeError("a member of the key set is not a key")
        # By the key, never by the token: a token that chose its algorithm could name HMAC, and be
        # signed with the public key as the secret.
        algorithms = ALGORITHMS.get(str(each.get("kty")), ())
        if "alg" in each:
            algorithms = tuple(name for name in algorithms if name == each["alg"])
        if not algorithms or each.get("use", "sig") != "sig":
            continue
        try:
            found.append(Key(each.get("kid"), algorithms, jwt.PyJWK(each).key))
        except jwt.PyJWTError as error:
            _log.warning("skipped key %r of the key set: %s", each.get("kid"), error)
    if not found:
        raise ValueError("the key set has no key for checking signatures")
    return found
