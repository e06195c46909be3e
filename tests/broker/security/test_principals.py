"""Principals of certificates, as Java writes them."""

from __future__ import annotations

import pytest

from streamlog.broker.security.principals import IN_PROCESS, USER, distinguished_name, of_user


def test_the_most_specific_part_comes_first() -> None:
    subject = [
        [("countryName", "DE")],
        [("organizationName", "Example, Inc.")],
        [("organizationalUnitName", "a"), ("commonName", "shop")],
    ]
    assert distinguished_name(subject) == "OU=a+CN=shop,O=Example\\, Inc.,C=DE"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (" a ", "\\ a\\ "),
        ("#1", "\\#1"),
        ('a+b"c\\d<e>f;g=h', 'a\\+b\\"c\\\\d\\<e\\>f\\;g\\=h'),
        ("ä", "ä"),
    ],
)
def test_special_characters_are_marked(value: str, shown: str) -> None:
    assert distinguished_name([[("commonName", value)]]) == f"CN={shown}"


def test_an_address_has_no_name_in_the_standard() -> None:
    subject = [[("emailAddress", "a@b")]]
    assert distinguished_name(subject) == "1.2.840.113549.1.9.1=#1603614062"


@pytest.mark.parametrize(
    ("size", "length"), [(127, "7f"), (128, "8180"), (255, "81ff"), (256, "820100")]
)
def test_a_long_address_has_the_length_of_der(size: int, length: str) -> None:
    """As X.690, 8.1.3, has it; Java writes these bytes in hexadecimal (RFC 2253)."""
    name = distinguished_name([[("emailAddress", "a" * size)]])
    assert name == f"1.2.840.113549.1.9.1=#16{length}{'61' * size}"


def test_nobody_on_a_connection_is_the_process() -> None:
    assert not IN_PROCESS.startswith(USER)
    assert of_user("Process:streamlog") != IN_PROCESS
