"""Tokens of `.proto` text, one after another, each with its line and column.

Rule: the text is read once, and one token is kept. Nothing here knows the grammar.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from streamlog.errors import InvalidSchema
from streamlog.schemas.json_text import shown

_TOKEN: Final = re.compile(
    r"""
    (?P<space>\s+|//[^\n]*|/\*(?:[^*]|\*(?!/))*+\*/)
    |(?P<name>[A-Za-z_]\w*)
    |(?P<number>\.?\d(?:[eE][+-]|[\w.])*)
    |(?P<text>"(?:[^"\\\n]|\\.)*+"|'(?:[^'\\\n]|\\.)*+')
    |(?P<sign>[{}()\[\]<>;,=.:+/-])
    """,
    re.VERBOSE | re.ASCII,
)
_ESCAPES: Final = {
    "n": b"\n",
    "t": b"\t",
    "r": b"\r",
    "a": b"\a",
    "b": b"\b",
    "f": b"\f",
    "v": b"\v",
    **{sign: sign.encode() for sign in "\\'\"?"},
}
_ESCAPE: Final = re.compile(
    r"\\(?:([0-7]{1,3})|[xX]([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL
)
_MAX_CODE: Final = 0x10FFFF
_SURROGATES: Final = range(0xD800, 0xE000)


@dataclass(slots=True)
class ProtoTokens:
    """The tokens of a text, with the next one in sight."""

    source: str
    at: int = 0
    kind: str = ""
    """name, number, text or sign; "" at the end."""
    word: str = ""
    """The next token as it stands in the text; "" at the end."""
    start: int = 0

    def __post_init__(self) -> None:
        # Files that editors of other systems wrote may begin with a mark of their byte order.
        self.at = int(self.source.startswith("\ufeff"))
        self.advance()

    def advance(self) -> str:
        """Go on to the next token; return the one before it."""
        before = self.word
        while True:
            # Each pattern is possessive: no character is looked at twice.
            found = _TOKEN.match(self.source, self.at)
            if found is None:
                break
            self.start, self.at = self.at, found.end()
            if found.lastgroup != "space":
                self.kind, self.word = found.lastgroup or "", found[0]
                return before
        # An unknown sign, or a text or comment without its end.
        if self.at < len(self.source):
            self.start = self.at
            raise self.error(f"{shown(self.source[self.at : self.at + 20])} is not Protobuf")
        self.start, self.kind, self.word = self.at, "", ""
        return before

    def error(self, message: str) -> InvalidSchema:
        """Return an error at the next token."""
        # Lines are counted only here: parsing ends with its first error.
        line = self.source.count("\n", 0, self.start) + 1
        column = self.start - self.source.rfind("\n", 0, self.start)
        return InvalidSchema(
            message[:1].upper() + message[1:], path=f"line {line}, column {column}"
        )

    def unexpected(self, wanted: str) -> InvalidSchema:
        """Return an error for a token that is none of those that may stand here."""
        return self.error(f"{wanted} is expected, not {shown(self.word) or 'the end'}")

    def take(self, token: str) -> bool:
        """Take a token if it is the next one; whether it was."""
        if self.word != token:
            return False
        self.advance()
        return True

    def expect(self, token: str) -> None:
        """Take a token that has to stand here."""
        if not self.take(token):
            raise self.unexpected(f"'{token}'")

    def name(self) -> str:
        """Take a name without dots."""
        if self.kind != "name":
            raise self.unexpected("a name")
        return self.advance()

    def full_name(self) -> str:
        """Take a name with dots in it, and maybe before it."""
        parts = [""] if self.take(".") else []
        parts.append(self.name())
        while self.take("."):
            parts.append(self.name())
        return ".".join(parts)

    def integer(self) -> int:
        """Take an integer: decimal, octal or hexadecimal, with a sign or without."""
        sign = -1 if self.take("-") else 1
        if self.kind != "number":
            raise self.unexpected("a number")
        try:
            # Python has no octal numbers that begin with a bare zero.
            number = int(self.word, 8 if re.fullmatch("0[0-7]+", self.word) else 0)
        except ValueError as error:
            raise self.error(f"{shown(self.word)} is not an integer") from error
        self.advance()
        return sign * number

    def text(self) -> bytes:
        """Take a text, which may stand in several parts, as bytes."""
        if self.kind != "text":
            raise self.unexpected("a text")
        parts = []
        # Texts beside each other are one, as in C.
        while self.kind == "text":
            parts.append(self._unescaped(self.word[1:-1]))
            self.advance()
        return b"".join(parts)

    def string(self) -> str:
        """Take a text that has to be Unicode."""
        start = self.start
        try:
            return self.text().decode()
        except UnicodeDecodeError as error:
            self.start = start
            raise self.error("a text is not UTF-8") from error

    def _unescaped(self, inside: str) -> bytes:
        parts: list[bytes] = []
        at = 0
        for found in _ESCAPE.finditer(inside):
            parts += (inside[at : found.start()].encode(), self._escaped(found))
            at = found.end()
        return b"".join((*parts, inside[at:].encode()))

    def _escaped(self, found: re.Match[str]) -> bytes:
        octal, hexadecimal, short, long, sign = found.groups()
        if octal or hexadecimal:
            return bytes([int(octal, 8) & 0xFF if octal else int(hexadecimal, 16)])
        if short or long:
            code = int(short or long, 16)
            if code > _MAX_CODE or code in _SURROGATES:
                raise self.error(f"{found[0]} is not a character")
            return chr(code).encode()
        if sign not in _ESCAPES:
            raise self.error(f"\\{sign} is not an escape")
        return _ESCAPES[sign]
