"""Principals of certificates, in the form that Java writes."""

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
def test_special_characters_are_escaped(value: str, shown: str) -> None:
    assert distinguished_name([[("commonName", value)]]) == f"CN={shown}"


def test_an_email_address_is_written_by_its_object_identifier() -> None:
    subject = [[("emailAddress", "a@b")]]
    assert distinguished_name(subject) == "1.2.840.113549.1.9.1=#1603614062"


@pytest.mark.parametrize(
    ("size", "length"), [(127, "7f"), (128, "8180"), (255, "81ff"), (256, "820100")]
)
def test_a_long_email_address_has_a_der_length(size: int, length: str) -> None:
    """Lengths follow X.690, 8.1.3; Java writes the bytes in hexadecimal (RFC 2253)."""
    name = distinguished_name([[("emailAddress", "a" * size)]])
    assert name == f"1.2.840.113549.1.9.1=#16{length}{'61' * size}"


def test_no_user_name_equals_the_principal_of_the_process() -> None:
    assert not IN_PROCESS.startswith(USER)
    assert of_user("Process:streamlog") != IN_PROCESS
