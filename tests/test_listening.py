"""Addresses to listen on: what they may be, and who can reach them."""

from __future__ import annotations

import pytest

from streamlog.errors import ConfigError
from streamlog.listening import is_local, parse_address


def test_addresses_are_parsed_as_host_and_port() -> None:
    assert parse_address("127.0.0.1:80", setting="web") == ("127.0.0.1", 80)
    assert parse_address(":0", setting="web") == ("127.0.0.1", 0)
    assert parse_address("[::1]:8080", setting="web") == ("::1", 8080)
    for wrong in ("", "8080", "host", "host:", "host:x", "host:70000", "host:" + "9" * 5000):
        with pytest.raises(ConfigError, match=r"^rest=.* such as 127\.0\.0\.1:99 or :99"):
            parse_address(wrong, setting="rest", example=99)


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("x", False)],  # noqa: S104
)
def test_only_loopback_addresses_are_local(host: str, *, expected: bool) -> None:
    assert is_local(host) == expected
