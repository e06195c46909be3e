"""Principals: the names that ACLs are about, `User:alice`, and where they come from.

A connection that proves nothing is `User:ANONYMOUS`; with SASL it is the user that was proven,
with a TLS certificate the certificate's subject as Java writes it (RFC 2253, the most specific
part first), because the ACLs of a Kafka cluster are written so. Who calls from inside the
broker's process is a principal of a type that nobody can claim over a connection.
"""

from __future__ import annotations

from collections.abc import Sequence

ANONYMOUS = "User:ANONYMOUS"
IN_PROCESS = "Process:streamlog"
"""May do everything: it could open the files as well."""
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
# RFC 2253 has no name for it, so Java writes its number and the value's DER: an IA5String.
_EMAIL_NUMBER = "1.2.840.113549.1.9.1"
_IA5_STRING = 0x16
_SPECIAL = set(',+"\\<>;=')

Subject = Sequence[Sequence[tuple[str, str]]]
"""As `ssl` gives it: parts, the most general first, each of one or more attributes."""


def of_user(name: str) -> str:
    """The principal of somebody who has proven to be this user."""
    return USER + name


def distinguished_name(subject: Subject) -> str:
    """A certificate's subject in the form of RFC 2253."""
    return ",".join("+".join(_attribute(*each) for each in part) for part in reversed(subject))


def _attribute(kind: str, value: str) -> str:
    if kind == _EMAIL:
        data = value.encode()
        return f"{_EMAIL_NUMBER}=#{bytes((_IA5_STRING, len(data) & 0x7F)).hex()}{data.hex()}"
    return f"{_SHORT.get(kind, kind)}={_escaped(value)}"


def _escaped(value: str) -> str:
    text = "".join(f"\\{each}" if each in _SPECIAL else each for each in value)
    if text.startswith(("#", " ")):
        text = "\\" + text
    if text.endswith(" ") and len(value) > 1:
        text = text[:-1] + "\\ "
    return text
