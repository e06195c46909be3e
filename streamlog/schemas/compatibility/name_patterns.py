"""Whether a pattern of JSON Schema is found in a name, in time that an attacker can't lengthen.

Python's `re` tries alternatives one after another, so a pattern such as `(a+)+$` takes a time that
doubles with each character. Here, all of them are followed at once (Thompson's construction).

Rule: the time is bounded by the pattern times the name. A pattern with parts that are not known
here (look-around, references to groups, Unicode properties) counts as found in every name: what it
covers is compared then, and a difference is rather reported than missed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, TypeAlias

MAX_STATES = 2_000
"""How many states a pattern may have; counted repetitions are written out."""
MAX_STEPS = 2_000_000
"""How many states all searches of one comparison visit; later ones count as found."""
MAX_GROUPS = 50
"""How deep groups may be nested."""
_MAX_CODE: Final = 0x10FFFF
_Ranges: TypeAlias = tuple[tuple[int, int], ...]
_DIGIT: _Ranges = ((48, 57),)
_WORD: _Ranges = ((48, 57), (65, 90), (95, 95), (97, 122))
_SPACE: _Ranges = ((9, 13), (32, 32), (0xA0, 0xA0), (0x2028, 0x2029), (0xFEFF, 0xFEFF))
_LINE_END: _Ranges = ((10, 10), (13, 13), (0x2028, 0x2029))
_CONTROLS = {"n": 10, "t": 9, "r": 13, "f": 12, "v": 11, "0": 0}
_HEX_DIGITS = {"x": 2, "u": 4}
_HEX = frozenset("0123456789abcdefABCDEF")
_COUNT_DIGITS = 4
"""The most digits of a count: one with more needs more states than there may be."""


class _Unknown(Exception):
    """The pattern has a part that is not known here."""


@dataclass(slots=True)
class _State:
    """A state: it takes a character and continues, or continues without one."""

    takes: _Ranges | None = None
    """None if it takes no character."""
    only_at: str = ""
    """`^` or `$` if it continues only there."""
    to: list[int] = field(default_factory=list)


@dataclass(slots=True)
class NamePatterns:
    """Searches names for patterns; reads each pattern once."""

    _programs: dict[str, list[_State] | None] = field(default_factory=dict)
    _steps: int = 0

    def is_found(self, pattern: str, name: str) -> bool:
        """Whether a pattern is found in a name, or can't be searched for."""
        if pattern not in self._programs:
            try:
                self._programs[pattern] = _PatternReader(pattern).read()
            except _Unknown:
                self._programs[pattern] = None
        program = self._programs[pattern]
        return program is None or self._is_found(program, name)

    def _is_found(self, program: list[_State], name: str) -> bool:
        end = len(program) - 1
        current: set[int] = set()
        for position in range(len(name) + 1):
            # A match may begin anywhere.
            current = self._spread(program, {0, *current}, position, len(name))
            # Out of steps counts as found, too: a difference is rather reported than missed.
            if end in current or self._steps > MAX_STEPS:
                return True
            if position < len(name):
                code = ord(name[position])
                current = {
                    to for at in current if _takes(program[at], code) for to in program[at].to
                }
        return False

    def _spread(
        self, program: list[_State], states: set[int], position: int, size: int
    ) -> set[int]:
        """Return the states and those that they reach without a character."""
        found, waiting = set(states), list(states)
        while waiting:
            self._steps += 1
            state = program[waiting.pop()]
            if state.takes is not None:
                continue
            # `^` and `$` take no character, and are passed only at an end of the name.
            if state.only_at and position != (0 if state.only_at == "^" else size):
                continue
            fresh = [to for to in state.to if to not in found]
            found.update(fresh)
            waiting += fresh
        return found


def _takes(state: _State, code: int) -> bool:
    return state.takes is not None and any(low <= code <= high for low, high in state.takes)


def _others(ranges: _Ranges) -> _Ranges:
    """Return all characters that are not in some ranges."""
    found: list[tuple[int, int]] = []
    free = 0
    for low, high in sorted(ranges):
        if low > free:
            found.append((free, low - 1))
        free = max(free, high + 1)
    if free <= _MAX_CODE:
        found.append((free, _MAX_CODE))
    return tuple(found)


_CLASSES: dict[str, _Ranges] = {
    "d": _DIGIT,
    "D": _others(_DIGIT),
    "w": _WORD,
    "W": _others(_WORD),
    "s": _SPACE,
    "S": _others(_SPACE),
}


@dataclass(slots=True)
class _PatternReader:
    """Reads a regular expression of ECMAScript into states; the first begins, the last ends."""

    text: str
    at: int = 0
    states: list[_State] = field(default_factory=list)

    def read(self) -> list[_State]:
        start = self._state()
        begin, end = self._choice(0)
        if self.at < len(self.text):
            raise _Unknown
        self.states[start].to.append(begin)
        self.states[end].to.append(self._state())
        return self.states

    def _state(self, takes: _Ranges | None = None, only_at: str = "") -> int:
        if len(self.states) >= MAX_STATES:
            raise _Unknown
        self.states.append(_State(takes, only_at))
        return len(self.states) - 1

    def _peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def _next(self) -> str:
        found = self._peek()
        if not found:
            raise _Unknown
        self.at += 1
        return found

    def _choice(self, depth: int) -> tuple[int, int]:
        if depth > MAX_GROUPS:
            raise _Unknown
        begin, end = self._state(), self._state()
        while True:
            first, last = self._sequence(depth)
            self.states[begin].to.append(first)
            self.states[last].to.append(end)
            if self._peek() != "|":
                return begin, end
            self.at += 1

    def _sequence(self, depth: int) -> tuple[int, int]:
        begin = end = self._state()
        while self._peek() not in {"", "|", ")"}:
            begin_at = self.at
            first, last = self._atom(depth)
            first, last = self._repeated(first, last, begin_at, depth)
            self.states[end].to.append(first)
            end = last
        return begin, end

    def _repeated(self, first: int, last: int, begin_at: int, depth: int) -> tuple[int, int]:
        # a{2,4} is written out as aa(a(a)?)?: each copy is read from the text again, since a state
        # has one place in the program.
        low, high = self._count()
        if (low, high) == (1, 1):
            return first, last
        end_at = self.at
        begin, end = self._state(), self._state()
        self.states[begin].to.append(first)
        if low == 0:
            self.states[begin].to.append(end)
        if high is None:
            high, loops = max(low, 1), True
        else:
            loops = False
        copy = first
        for number in range(1, max(high, 1)):
            # After `low` copies each further one may be left out.
            if number >= low:
                self.states[last].to.append(end)
            self.at = begin_at
            copy, following = self._atom(depth)
            self.states[last].to.append(copy)
            last = following
        # Without an upper bound, the last copy may come again.
        if loops:
            self.states[last].to.append(copy)
        if high > 0:
            self.states[last].to.append(end)
        self.at = end_at
        return begin, end

    def _count(self) -> tuple[int, int | None]:
        counts: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
        sign = self._peek()
        if sign in counts:
            self.at += 1
            found = counts[sign]
        elif sign == "{" and "}" in self.text[self.at :]:
            inside = self.text[self.at + 1 : self.text.index("}", self.at)]
            low, comma, high = inside.partition(",")
            if not all(
                each.isdecimal() and len(each) <= _COUNT_DIGITS for each in (low, high or "0")
            ):
                raise _Unknown
            found = int(low), int(high) if high else None if comma else int(low)
            self.at += len(inside) + 2
        else:
            return 1, 1
        if self._peek() == "?":
            # Lazy: another match is preferred, but one is found where a greedy one is.
            self.at += 1
        # {0} and {3,1} are legal or refused, depending on the engine: not decided here.
        if found == (0, 0) or (found[1] is not None and found[1] < found[0]):
            raise _Unknown
        return found

    def _atom(self, depth: int) -> tuple[int, int]:
        sign = self._next()
        if sign == "(":
            return self._group(depth)
        if sign in {"^", "$"}:
            state = self._state(only_at=sign)
        elif sign == ".":
            state = self._state(_others(_LINE_END))
        elif sign == "[":
            state = self._state(self._class())
        elif sign == "\\":
            state = self._state(self._escaped())
        elif sign in "*+?{":
            raise _Unknown
        else:
            state = self._state(((ord(sign), ord(sign)),))
        end = self._state()
        self.states[state].to.append(end)
        return state, end

    def _group(self, depth: int) -> tuple[int, int]:
        if self._peek() == "?":
            # (?=, (?!, (?<=: look-around needs more than the set of states.
            if self.text[self.at : self.at + 2] != "?:":
                raise _Unknown
            self.at += 2
        found = self._choice(depth + 1)
        if self._next() != ")":
            raise _Unknown
        return found

    def _escaped(self) -> _Ranges:
        sign = self._next()
        if sign in _CLASSES:
            return _CLASSES[sign]
        if sign in _CONTROLS:
            return ((_CONTROLS[sign], _CONTROLS[sign]),)
        if sign in _HEX_DIGITS:
            digits = self.text[self.at : self.at + _HEX_DIGITS[sign]]
            if len(digits) < _HEX_DIGITS[sign] or not all(
                x in "0123456789abcdefABCDEF" for x in digits
            ):
                raise _Unknown
            self.at += len(digits)
            return ((int(digits, 16), int(digits, 16)),)
        # \1 refers to a group, \p{L} to a property of Unicode, \b to a border of words.
        if sign.isalnum():
            raise _Unknown
        return ((ord(sign), ord(sign)),)

    def _class(self) -> _Ranges:
        is_negated = self._peek() == "^"
        self.at += is_negated
        ranges: list[tuple[int, int]] = []
        while self._peek() != "]":
            low = self._member()
            is_range = self._peek() == "-" and self.text[self.at + 1 : self.at + 2] not in {"", "]"}
            if not is_range:
                ranges += low
                continue
            self.at += 1
            high = self._member()
            if len(low) != 1 or len(high) != 1 or low[0][0] > high[0][1]:
                raise _Unknown
            ranges.append((low[0][0], high[0][1]))
        self.at += 1
        return _others(tuple(ranges)) if is_negated else tuple(ranges)

    def _member(self) -> _Ranges:
        sign = self._next()
        if sign != "\\":
            return ((ord(sign), ord(sign)),)
        # Within brackets, \b is a backspace.
        if self._peek() == "b":
            self.at += 1
            return ((8, 8),)
        return self._escaped()
