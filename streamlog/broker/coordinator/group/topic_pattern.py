"""TopicPattern: a client's regular expression for names of topics.

Matching is linear in the length of the name for every expression, as in RE2 (Kafka's choice,
KIP-848): an expression becomes a state machine whose states are followed simultaneously, and every
set of states is cached. So no expression of a client can keep the broker busy for long. The syntax
is RE2's, without the parts that are useless in names of topics (Unicode classes, word boundaries).
RE2 has neither look-around nor back references. The whole name has to match.
"""

from __future__ import annotations

import string
from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec

from streamlog.errors import ConfigError

CHARACTERS_MAX = 1_000
"""Characters of one expression."""
STATES_MAX = 1_000
"""States of one machine, with repetitions expanded."""
REPEAT_MAX = 1_000
DEPTH_MAX = 50
"""Nested brackets."""
REMEMBERED_MAX = 5_000
"""Cached transitions and names; when the cache is full, it is cleared."""
NAMES = frozenset(string.ascii_letters + string.digits + "._-")
"""All characters that names of topics can contain."""
_WORD = frozenset(string.ascii_letters + string.digits + "_") & NAMES
_CLASSES = {
    "d": frozenset(string.digits),
    "D": NAMES - frozenset(string.digits),
    "w": _WORD,
    "W": NAMES - _WORD,
    "s": frozenset[str](),
    "S": NAMES,
}
_POSIX = {
    "alnum": frozenset(string.ascii_letters + string.digits),
    "alpha": frozenset(string.ascii_letters),
    "digit": frozenset(string.digits),
    "lower": frozenset(string.ascii_lowercase),
    "punct": NAMES - frozenset(string.ascii_letters + string.digits),
    "upper": frozenset(string.ascii_uppercase),
    "word": _WORD,
}
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}
_BEGIN, _END = "begin", "end"

States: TypeAlias = frozenset[int]


@dataclass(slots=True)
class _State:
    """Goes to `then` on a character of `takes`; goes to all of `free` without a character."""

    takes: frozenset[str] = frozenset()
    then: int = -1
    free: list[int] = field(default_factory=list)
    where: str = ""
    """If set, `free` applies only at the beginning or the end of the name."""


class _Part(msgspec.Struct, frozen=True):
    """A part of the machine: its first and its last state."""

    first: int
    last: int


class TopicPattern:
    """A parsed expression."""

    def __init__(self, text: str) -> None:
        """Parse an expression.

        Raises:
            ConfigError: the expression is malformed or too large.
        """
        parser = _Parser(text)
        self.text = text
        self._states = parser.states
        self._whole = parser.parse()
        self._steps: dict[tuple[States, str], States] = {}
        self._cached_matches: dict[str, bool] = {}

    def matches(self, name: str) -> bool:
        """Whether the expression matches all of `name`."""
        known = self._cached_matches.get(name)
        if known is None:
            if len(self._cached_matches) >= REMEMBERED_MAX:
                self._cached_matches.clear()
            known = self._cached_matches[name] = self._run(name)
        return known

    def _run(self, name: str) -> bool:
        at = self._reach({self._whole.first}, begin=True, end=not name)
        # The last character is cached under its own key: only there can `$` match.
        for position, character in enumerate(name):
            is_last = position == len(name) - 1
            step = (at, character if not is_last else character + "$")
            after = self._steps.get(step)
            if after is None:
                taken = {self._states[s].then for s in at if character in self._states[s].takes}
                after = self._reach(taken, begin=False, end=is_last)
                if len(self._steps) >= REMEMBERED_MAX:
                    self._steps.clear()
                self._steps[step] = after
            at = after
            if not at:
                return False
        return self._whole.last in at

    def _reach(self, states: set[int], *, begin: bool, end: bool) -> States:
        """Return these states and all that are reachable without a character."""
        reached: set[int] = set()
        todo = list(states)
        while todo:
            number = todo.pop()
            if number in reached:
                continue
            reached.add(number)
            state = self._states[number]
            if not state.where or (begin if state.where == _BEGIN else end):
                todo += state.free
        return frozenset(reached)


class _Parser:
    """Parses an expression into states: alternatives of sequences of repeated atoms."""

    def __init__(self, text: str) -> None:
        self.states: list[_State] = []
        self._text = text
        self._at = 0
        self._depth = 0
        self._ignores_case = False
        if len(text) > CHARACTERS_MAX:
            raise ConfigError(
                f"a regular expression has {len(text)} characters: at most {CHARACTERS_MAX} are"
                " allowed"
            )

    def parse(self) -> _Part:
        whole = self._alternatives()
        if self._at < len(self._text):
            raise self._wrong("a ')' has no matching '('")
        return whole

    def _wrong(self, what: str) -> ConfigError:
        return ConfigError(f"regular expression {self._text!r}, character {self._at}: {what}")

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _take(self, text: str) -> bool:
        if not self._text.startswith(text, self._at):
            return False
        self._at += len(text)
        return True

    def _new(self, takes: frozenset[str] = frozenset(), where: str = "") -> int:
        if len(self.states) >= STATES_MAX:
            raise self._wrong(f"more than {STATES_MAX} states: use smaller repetitions")
        self.states.append(_State(takes, where=where))
        return len(self.states) - 1

    def _alternatives(self) -> _Part:
        parts = [self._sequence()]
        while self._take("|"):
            parts.append(self._sequence())
        if len(parts) == 1:
            return parts[0]
        first, last = self._new(), self._new()
        for part in parts:
            self.states[first].free.append(part.first)
            self.states[part.last].free.append(last)
        return _Part(first, last)

    def _sequence(self) -> _Part:
        first = last = self._new()
        while self._peek() not in ("", "|", ")"):
            part = self._repetition()
            self.states[last].free.append(part.first)
            last = part.last
        return _Part(first, last)

    def _repetition(self) -> _Part:
        begin = self._at
        part = self._atom()
        end, bounds = self._at, self._bounds()
        if bounds is None:
            return part
        least, most = bounds
        after = self._at
        # An atom is expanded once per required repetition, and once per optional one; the text is
        # parsed again for each copy, so that every copy has its own states.
        first = last = self._new()
        for count in range(max(least, 1) if most is None else most):
            copy = part if count == 0 else self._copy_atom(begin, end)
            self.states[last].free.append(copy.first)
            if count >= least:
                # This copy and those after it are optional.
                self.states[last].free.append(copy.last)
            last = copy.last
            if most is None and count == max(least, 1) - 1:
                self.states[copy.last].free.append(copy.first)
        self._at = after
        if most is None:
            # A new last state: a loop must not take along the transitions that are added behind it.
            final = self._new()
            self.states[last].free.append(final)
            last = final
        if self._peek() in ("*", "+", "{"):
            raise self._wrong("a repetition of a repetition: put the inner one in brackets")
        return _Part(first, last)

    def _copy_atom(self, begin: int, end: int) -> _Part:
        """Parse the same atom once more."""
        self._at = begin
        part = self._atom()
        self._at = end
        return part

    def _bounds(self) -> tuple[int, int | None] | None:
        """Return how often the preceding atom is repeated; None for once."""
        simple = {"*": (0, None), "+": (1, None), "?": (0, 1)}
        bounds: tuple[int, int | None] | None = simple.get(self._peek())
        if bounds is not None:
            self._at += 1
        elif self._peek() == "{":
            bounds = self._bounds_in_braces()
        if bounds is not None:
            self._take("?")  # Laziness makes no difference to what matches.
        return bounds

    def _bounds_in_braces(self) -> tuple[int, int | None]:
        body, closing, _ = self._text[self._at + 1 :].partition("}")
        least, comma, most = body.partition(",")
        if not closing or not least.isdecimal() or not (most.isdecimal() or not most):
            raise self._wrong("a repetition must be {n}, {n,} or {n,m}")
        bounds = (int(least), int(most) if most else None if comma else int(least))
        if max(bounds[0], bounds[1] or 0) > REPEAT_MAX:
            raise self._wrong(f"a repetition of more than {REPEAT_MAX} times")
        if bounds[1] is not None and bounds[1] < bounds[0]:
            raise self._wrong("a repetition whose maximum is below its minimum")
        self._at += len(body) + 2
        return bounds

    def _atom(self) -> _Part:
        character = self._peek()
        if character == "(":
            return self._group()
        if character == "[":
            return self._one_of(self._class())
        if character and character in "*+?":
            raise self._wrong("nothing to repeat")
        self._at += 1
        if character == ".":
            return self._one_of(NAMES)
        if character in ("^", "$"):
            return self._anchor(_BEGIN if character == "^" else _END)
        if character == "\\":
            return self._escape_sequence()
        return self._one_of(self._fold(frozenset(character)))

    def _escape_sequence(self) -> _Part:
        if self._peek() in ("A", "z"):
            where = _BEGIN if self._peek() == "A" else _END
            self._at += 1
            return self._anchor(where)
        return self._one_of(self._fold(self._escape()))

    def _one_of(self, takes: frozenset[str]) -> _Part:
        last = self._new()
        first = self._new(takes & NAMES)
        self.states[first].then = last
        return _Part(first, last)

    def _anchor(self, where: str) -> _Part:
        first, last = self._new(where=where), self._new()
        self.states[first].free.append(last)
        return _Part(first, last)

    def _group(self) -> _Part:
        self._at += 1
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise self._wrong(f"brackets are nested more than {DEPTH_MAX} deep")
        if self._take("?i)"):
            # It holds to the end of the surrounding group, which restores the flag below.
            self._ignores_case = True
            self._depth -= 1
            return self._empty()
        # A look-behind begins like the name of a group.
        looks = self._text[self._at : self._at + 3] in ("?<=", "?<!")
        if not looks and (self._take("?P<") or self._take("?<")):
            name, closing, _ = self._text[self._at :].partition(">")
            if not closing or not name.isidentifier():
                raise self._wrong("a group's name is missing or wrong")
            self._at += len(name) + 1
        elif not self._take("?:") and self._peek() == "?":
            raise self._wrong("look-around and this kind of group are not supported")
        folded = self._ignores_case
        part = self._alternatives()
        self._ignores_case = folded
        if not self._take(")"):
            raise self._wrong("a bracket is not closed")
        self._depth -= 1
        return part

    def _empty(self) -> _Part:
        state = self._new()
        return _Part(state, state)

    def _fold(self, takes: frozenset[str]) -> frozenset[str]:
        if not self._ignores_case:
            return takes
        return frozenset(case for each in takes for case in (each.lower(), each.upper()))

    def _escape(self) -> frozenset[str]:
        character = self._peek()
        self._at += 1
        if character in _CLASSES:
            return _CLASSES[character]
        if character in _CONTROLS:
            return frozenset(_CONTROLS[character])
        if not character or character.isalnum():
            raise self._wrong(f"\\{character} is not a known escape")
        return frozenset(character)

    def _class(self) -> frozenset[str]:
        self._at += 1
        negated = self._take("^")
        found: frozenset[str] = frozenset()
        begin = self._at
        # A closing bracket in the first place is a character of the class.
        while self._at == begin or self._peek() != "]":
            if not self._peek():
                raise self._wrong("a character class is not closed")
            found |= self._class_item()
        self._at += 1
        found = self._fold(found)
        return NAMES - found if negated else found

    def _class_item(self) -> frozenset[str]:
        if self._text.startswith("[:", self._at):
            name, closing, _ = self._text[self._at + 2 :].partition(":]")
            if not closing or name not in _POSIX:
                raise self._wrong(f"unknown character class {name[:20]!r}")
            self._at += len(name) + 4
            return _POSIX[name]
        low = self._class_character()
        is_range = self._peek() == "-" and self._text[self._at + 1 : self._at + 2] not in ("", "]")
        if not is_range or len(low) != 1:
            return low
        self._at += 1
        high = self._class_character()
        if len(high) != 1 or max(high) < max(low):
            raise self._wrong("a character range that ends before it begins")
        return frozenset(each for each in NAMES if max(low) <= each <= max(high))

    def _class_character(self) -> frozenset[str]:
        if self._take("\\"):
            return self._escape()
        self._at += 1
        return frozenset(self._text[self._at - 1])
