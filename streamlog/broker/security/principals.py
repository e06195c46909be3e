r"""Principals: the names that ACLs use, such as `User:alice`, and where they come from.

A connection without authentication is `User:ANONYMOUS`; with SASL, it is the authenticated user;
with a TLS certificate, it is the certificate's subject as Java writes it (RFC 2253, the most
specific part first), so that the ACLs of a Kafka cluster match. A client inside the broker's
process has a principal type that no connection can claim.

`PrincipalRules` maps a certificate's subject to a user name by `ssl.principal.mapping.rules`
(KIP-371): the first rule whose pattern matches the whole subject gives the name. The administrator
writes the patterns, so slow ones are not guarded against. In patterns and replacements a slash is
written as `\/`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final, Self

import msgspec

from streamlog.broker.config.connections import AdvertisedEndpoint
from streamlog.errors import ConfigError

DEFAULT: Final = "DEFAULT"
_PART: Final = r"((?:\\.|[^\\/])*)"
_RULE: Final = re.compile(rf"\s*(?:(DEFAULT)|RULE:{_PART}/{_PART}/([LU]?))\s*(?:,|$)")
_GROUP: Final = re.compile(r"\\(.)|\$(\d)", re.DOTALL)
_CASES: Final[dict[str, Callable[[str], str]]] = {"": str, "L": str.lower, "U": str.upper}


class _Rule(msgspec.Struct, frozen=True):
    """One mapping rule; without a pattern, it returns the subject unchanged."""

    pattern: re.Pattern[str] | None
    replacement: str = ""
    case: str = ""

    def name_of(self, subject: str) -> str | None:
        """Return the user name for a subject; None if the pattern does not match."""
        if self.pattern is None:
            return subject
        found = self.pattern.fullmatch(subject)
        if found is None:
            return None

        def part(reference: re.Match[str]) -> str:
            escaped, number = reference.groups()
            if number is None:
                return str(escaped)
            # As in Kafka, a reference to a group that does not exist is literal text.
            within = int(number) <= found.re.groups
            return (found.group(int(number)) or "") if within else reference.group()

        return _CASES[self.case](_GROUP.sub(part, self.replacement))


class PrincipalRules:
    """The mapping rules of a broker."""

    def __init__(self, rules: tuple[_Rule, ...]) -> None:
        """Use `parse`."""
        self._rules = rules

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the rules in a setting; an empty text means the unchanged subject.

        Raises:
            ConfigError: it is not a list of rules.
        """
        rules: list[_Rule] = []
        text = text.strip() or DEFAULT
        position = 0
        while position < len(text):
            found = _RULE.match(text, position)
            if found is None:
                raise ConfigError(
                    f"ssl.principal.mapping.rules: {text[position:]!r} is neither DEFAULT nor"
                    " RULE:PATTERN/REPLACEMENT/ optionally followed by L or U"
                )
            position = found.end()
            is_default, pattern, replacement, case = found.groups()
            if is_default:
                rules.append(_Rule(None))
                continue
            try:
                rules.append(_Rule(re.compile(pattern), replacement, case))
            except re.error as error:
                raise ConfigError(
                    f"ssl.principal.mapping.rules: invalid regular expression {pattern!r}: {error}"
                ) from None
        return cls(tuple(rules))

    def name_of(self, subject: str) -> str | None:
        """Return the user name for a subject in RFC 2253 form; None if no rule matches."""
        names = (rule.name_of(subject) for rule in self._rules)
        return next((name for name in names if name is not None), None)


ANONYMOUS = "User:ANONYMOUS"
IN_PROCESS = "Process:streamlog"
"""May do everything, because it could open the data files as well."""
USER = "User:"
EVERYBODY = "User:*"

_SHORT = {
    "commonName": "CN",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "countryName": "C",
    "streetAddress": "STREET",
    "domainComponent": "DC",
    "userId": "UID",
}
_EMAIL = "emailAddress"
# RFC 2253 has no name for it, so Java writes its OID and the DER of the value, an IA5String.
_EMAIL_NUMBER = "1.2.840.113549.1.9.1"
_IA5_STRING = 0x16
_SPECIAL = set(',+"\\<>;=')

Subject = Sequence[Sequence[tuple[str, str]]]
"""As `ssl` returns it: parts, the most general first, each of one or more attributes."""


def of_user(name: str) -> str:
    """Return the principal of an authenticated user."""
    return USER + name


def distinguished_name(subject: Subject) -> str:
    """Return a certificate's subject in the form of RFC 2253."""
    # `ssl` lists the most general part first, RFC 2253 the most specific one.
    return ",".join("+".join(_attribute(*each) for each in part) for part in reversed(subject))


def _attribute(kind: str, value: str) -> str:
    if kind == _EMAIL:
        data = value.encode()
        return f"{_EMAIL_NUMBER}=#{_IA5_STRING:02x}{_der_length(len(data)).hex()}{data.hex()}"
    return f"{_SHORT.get(kind, kind)}={_escape(value)}"


def _der_length(size_bytes: int) -> bytes:
    # X.690, 8.1.3: up to 127 in one byte; else the number of bytes that follow, then the length.
    if size_bytes < 1 << 7:
        return bytes((size_bytes,))
    length = size_bytes.to_bytes((size_bytes.bit_length() + 7) // 8, "big")
    return bytes((1 << 7 | len(length),)) + length


def _escape(value: str) -> str:
    text = "".join(f"\\{each}" if each in _SPECIAL else each for each in value)
    if text.startswith(("#", " ")):
        text = "\\" + text
    if text.endswith(" ") and len(value) > 1:
        text = text[:-1] + "\\ "
    return text


class RequestContext(msgspec.Struct, frozen=True):
    """The sender of a request, and the request's version."""

    version: int
    client_id: str | None
    client_host: str
    principal: str = ANONYMOUS
    listener: AdvertisedEndpoint | None = None
    """The endpoint that the client has connected to; None for a client in this process."""
    connection: int = 0
    """The connection's number, in the order of acceptance; 0 in this process."""
    client_port: int = 0
    """The port from which the client has connected; 0 in this process."""
    software: tuple[str, str] = ("", "")
    """Name and version of the client's library (KIP-511); empty if it has not told."""
