r"""PrincipalRules: a user's name made of a certificate's subject, by Kafka's rules (KIP-371).

`ssl.principal.mapping.rules` is a list of rules; the first whose pattern matches the whole subject
says what the name is. The patterns are the administrator's, not a client's: a slow one is slow by
the will of who has written it. In patterns and replacements a slash is written as `\/`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Self

from streamlog.errors import ConfigError

DEFAULT: Final = "DEFAULT"
_PART: Final = r"((?:\\.|[^\\/])*)"
_RULE: Final = re.compile(rf"\s*(?:(DEFAULT)|RULE:{_PART}/{_PART}/([LU]?))\s*(?:,|$)")
_GROUP: Final = re.compile(r"\\(.)|\$(\d)", re.DOTALL)
_CASES: Final[dict[str, Callable[[str], str]]] = {"": str, "L": str.lower, "U": str.upper}


@dataclass(frozen=True, slots=True)
class _Rule:
    """One of them; without a pattern it is the subject as it is."""

    pattern: re.Pattern[str] | None
    replacement: str = ""
    case: str = ""

    def name_of(self, subject: str) -> str | None:
        """What it makes of a subject; None if it is not about it."""
        if self.pattern is None:
            return subject
        found = self.pattern.fullmatch(subject)
        if found is None:
            return None

        def part(reference: re.Match[str]) -> str:
            escaped, number = reference.groups()
            if number is None:
                return str(escaped)
            # As in Kafka, a group that the pattern does not have is text.
            within = int(number) <= found.re.groups
            return (found.group(int(number)) or "") if within else reference.group()

        return _CASES[self.case](_GROUP.sub(part, self.replacement))


class PrincipalRules:
    """The rules of a broker."""

    def __init__(self, rules: tuple[_Rule, ...]) -> None:
        """Use `parse`."""
        self._rules = rules

    @classmethod
    def parse(cls, text: str) -> Self:
        """The rules that a setting has; no text stands for the subject as it is.

        Raises:
            ConfigError: it is no list of rules.
        """
        rules: list[_Rule] = []
        text = text.strip() or DEFAULT
        place = 0
        while place < len(text):
            found = _RULE.match(text, place)
            if found is None:
                raise ConfigError(
                    f"ssl.principal.mapping.rules: {text[place:]!r} is neither DEFAULT nor"
                    " RULE:PATTERN/REPLACEMENT/ with L, U or nothing behind it"
                )
            place = found.end()
            is_default, pattern, replacement, case = found.groups()
            if is_default:
                rules.append(_Rule(None))
                continue
            try:
                rules.append(_Rule(re.compile(pattern), replacement, case))
            except re.error as error:
                raise ConfigError(
                    f"ssl.principal.mapping.rules: {pattern!r} is no regular expression: {error}"
                ) from None
        return cls(tuple(rules))

    def name_of(self, subject: str) -> str | None:
        """The name for a subject in the form of RFC 2253; None if no rule is about it."""
        names = (rule.name_of(subject) for rule in self._rules)
        return next((name for name in names if name is not None), None)
