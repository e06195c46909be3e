"""Session keys: what is signed, how long it holds, and when a key is renewed."""

from __future__ import annotations

import hmac
from base64 import b64decode, b64encode

import msgspec
import pytest

from streamlog.connect.herding.configs import ConnectConfigs, SessionKey
from streamlog.connect.herding.herder_requests import ConnectRefusal
from streamlog.http_access.peer_signatures import (
    ALGORITHM_HEADER,
    SIGNATURE_HEADER,
    SKEW_MS,
    TIME_HEADER,
)
from streamlog.worker.connect.session_keys import SessionKeys

REQUEST = ("PUT", "/connectors/a%2Fb/config?x=1", b'{"a":"b"}')


class FixedClock:
    def __init__(self) -> None:
        self.ms = 1_800_000_000_000

    def now_ms(self) -> int:
        return self.ms

    def wall_ms(self) -> int:
        return self.ms


def renew(*workers: SessionKeys) -> SessionKey:
    """Let the first worker write a key, and all read it back."""
    record = workers[0].renewal(None)
    assert record is not None
    configs = ConnectConfigs()
    configs.replay(*record, 0)
    assert configs.session_key is not None
    for each in workers:
        each.follow(configs.session_key)
    return configs.session_key


def refused(by: SessionKeys, method: str, target: str, body: bytes, headers: dict[str, str]) -> str:
    with pytest.raises(ConnectRefusal) as error:
        by.check(method, target, headers, body)
    assert error.value.status == 403
    return str(error.value)


def test_what_one_worker_signs_another_accepts_and_nothing_else() -> None:
    clock = FixedClock()
    a, b, other = (SessionKeys(clock) for _ in range(3))
    with pytest.raises(ConnectRefusal, match="no session key yet"):
        a.sign(*REQUEST)
    key = renew(a, b)
    headers = a.sign(*REQUEST)
    method, target, body = REQUEST
    assert b.check(method, target, headers, body)
    assert not b.check(method, target, {}, body), "a client's request has no signature"
    # By its definition: RFC 2104 over method, path, time, length and body.
    text = f"PUT\n{target}\n{headers[TIME_HEADER]}\n{len(body)}\n".encode() + body
    mac = hmac.new(b64decode(key.key), text, "sha256").digest()
    assert headers[SIGNATURE_HEADER] == b64encode(mac).decode()
    assert len(b64decode(key.key)) == 32

    assert "none of the group" in refused(b, "DELETE", target, body, headers)
    assert "none of the group" in refused(b, method, target + "&y=2", body, headers)
    assert "none of the group" in refused(b, method, target, body + b" ", headers)
    later = {**headers, TIME_HEADER: str(clock.ms + 1)}
    assert "none of the group" in refused(b, method, target, body, later)
    for wrong in ("", "?", "YQ==", "ä"):
        refused(b, method, target, body, {**headers, SIGNATURE_HEADER: wrong})
        refused(b, method, target, body, {**headers, TIME_HEADER: wrong})
    assert "HmacSHA256" in refused(b, method, target, body, {**headers, ALGORITHM_HEADER: "none"})
    assert "none of the group" in refused(other, method, target, body, headers), "no key here"


def test_a_signature_holds_for_a_minute() -> None:
    clock = FixedClock()
    a = SessionKeys(clock)
    renew(a)
    headers = a.sign(*REQUEST)
    method, target, body = REQUEST
    for ms, holds in (
        (SKEW_MS, True),
        (-SKEW_MS, True),
        (SKEW_MS + 1, False),
        (-SKEW_MS - 1, False),
    ):
        clock.ms += ms
        if holds:
            assert a.check(method, target, headers, body)
        else:
            assert "clocks" in refused(a, method, target, body, headers)
        clock.ms -= ms


def test_the_key_before_the_newest_holds_and_no_older_one() -> None:
    clock = FixedClock()
    a, late = SessionKeys(clock), SessionKeys(clock)
    method, target, body = REQUEST
    renew(a, late)
    headers = late.sign(*REQUEST)
    for holds in (True, False):
        clock.ms += SKEW_MS // 3
        a.follow(SessionKey(b64encode(clock.ms.to_bytes(32)).decode(), "HmacSHA256", clock.ms))
        if holds:
            assert a.check(method, target, headers, body)
    refused(a, method, target, body, headers)


def test_a_key_is_renewed_when_its_time_is_over_or_its_time_is_wrong() -> None:
    clock = FixedClock()
    keys = SessionKeys(clock, ttl_ms=600_000)
    first = renew(keys)
    assert first.creation_timestamp == clock.ms
    assert first.algorithm == "HmacSHA256"
    assert keys.renewal(first) is None
    assert keys.renewal(None) is None, "it has been written, and is not read back yet"
    clock.ms += 599_999
    assert keys.renewal(first) is None
    clock.ms += 1
    record = keys.renewal(first)
    assert record is not None
    properties = msgspec.json.decode(record[1] or b"")
    assert properties.keys() == {"key", "algorithm", "creation-timestamp"}
    assert properties["key"] != first.key
    clock.ms += SKEW_MS
    future = SessionKey("a", "HmacSHA256", clock.ms + 10**9)
    assert keys.renewal(future) is not None
