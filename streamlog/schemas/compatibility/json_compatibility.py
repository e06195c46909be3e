"""How one JSON Schema differs from the one before it, and whether it reads what that one allowed.

A content model says which properties or items a schema allows that it does not name: an open one
allows any, a closed one none, a partially open one those that fit a pattern or a schema.

Rule: kinds and paths are those of Confluent's registry, and so is what is not compared: formats,
conditions, `contains` and `propertyNames`. A const is compared as an enum of one value, which
Confluent's registry does not compare at all.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

from streamlog.schemas.compatibility.json_kinds import COMPATIBLE_KINDS
from streamlog.schemas.compatibility.levels import Difference
from streamlog.schemas.compatibility.matching import match_most
from streamlog.schemas.compatibility.name_patterns import NamePatterns
from streamlog.schemas.compatibility.pairs import Pair, PairTable, listed
from streamlog.schemas.json_schema.json_types import (
    Criterion,
    JsonAnything,
    JsonCombination,
    JsonEnumeration,
    JsonList,
    JsonMapping,
    JsonNegation,
    JsonNothing,
    JsonNumber,
    JsonText,
    JsonType,
    follow,
)

_Limits = tuple[tuple[str, str], ...]
_TEXT_LIMITS: _Limits = (("max_length", "maxLength"), ("min_length", "minLength"))
_NUMBER_LIMITS: _Limits = (
    ("maximum", "maximum"),
    ("minimum", "minimum"),
    ("exclusive_maximum", "exclusiveMaximum"),
    ("exclusive_minimum", "exclusiveMinimum"),
)
_MAPPING_LIMITS: _Limits = (
    ("max_properties", "maxProperties"),
    ("min_properties", "minProperties"),
)
_LIST_LIMITS: _Limits = (
    ("max_items", "maxItems"),
    ("min_items", "minItems"),
    ("max_contains", "maxContains"),
    ("min_contains", "minContains"),
)


def json_differences(reader: JsonType, writer: JsonType) -> list[Difference]:
    """Return how a reader's schema differs from a writer's, compatible changes included.

    Raises:
        InvalidSchema: the schemas are nested too deep, or have too many choices, to be compared.
    """
    found = listed(_JsonComparison().compare(writer, reader))
    return [Difference(each.kind, f"#/{'/'.join(path)}", each.detail) for path, each in found]


def json_incompatibilities(reader: JsonType, writer: JsonType) -> list[Difference]:
    """Return why a reader can't read what a writer writes; [] if it can.

    Raises:
        InvalidSchema: the schemas are nested too deep, or have too many choices, to be compared.
    """
    return [each for each in json_differences(reader, writer) if each.kind not in COMPATIBLE_KINDS]


def _note(pair: Pair, kind: str, *path: str) -> None:
    pair.add(Difference(kind, ""), path, is_wrong=kind not in COMPATIBLE_KINDS)


@dataclass(slots=True)
class _JsonComparison:
    """Compares pairs of schemas: the one before (old), and the one after (new), which reads."""

    table: PairTable = field(default_factory=PairTable)
    patterns: NamePatterns = field(default_factory=NamePatterns)

    def compare(self, old: JsonType, new: JsonType) -> Pair:
        old, new = follow(old), follow(new)
        return self.table.compare(old, new, lambda pair: self._fill(pair, old, new))

    def _include(self, pair: Pair, old: JsonType, new: JsonType, *path: str) -> bool:
        """Compare two schemas inside of these; whether they fit."""
        inner = self.compare(old, new)
        pair.include(inner, path)
        return inner.fits

    def _fill(self, pair: Pair, old: JsonType, new: JsonType) -> None:
        # A combination on one side only: its parts tell before the kinds are compared.
        if self._fits_one_part(pair, old, new):
            return
        # Nothing is read by all, and anything reads all; other kinds exclude one another.
        if type(old) is not type(new):
            if not isinstance(old, JsonNothing) and not isinstance(new, JsonAnything):
                _note(pair, "TYPE_CHANGED")
            return
        # Notes are differences that no reader minds.
        for kind, is_changed in (
            ("ID_CHANGED", old.id != new.id),
            ("TITLE_CHANGED", old.title != new.title),
            ("DESCRIPTION_CHANGED", old.description != new.description),
            ("DEFAULT_CHANGED", old.default != new.default),
        ):
            if is_changed:
                _note(pair, kind)
        match old, new:
            case JsonText(), JsonText():
                _compare_texts(pair, old, new)
            case JsonNumber(), JsonNumber():
                _compare_numbers(pair, old, new)
            case JsonEnumeration(), JsonEnumeration():
                _compare_values(pair, old, new)
            case _:
                self._fill_structured(pair, old, new)

    def _fill_structured(self, pair: Pair, old: JsonType, new: JsonType) -> None:
        match old, new:
            case JsonMapping(), JsonMapping():
                self._mappings(pair, old, new)
            case JsonList(), JsonList():
                self._lists(pair, old, new)
            case JsonCombination(), JsonCombination():
                self._combinations(pair, old, new)
            case JsonNegation(), JsonNegation():
                # Reversed: who refuses less allows more.
                fits = self.compare(new.inner, old.inner).fits
                _note(pair, "NOT_TYPE_NARROWED" if fits else "NOT_TYPE_EXTENDED", "not")

    def _fits_one_part(self, pair: Pair, old: JsonType, new: JsonType) -> bool:
        """Whether a schema fits one part of a combination, where only one of two is one."""
        inners: list[tuple[JsonType, JsonType]]
        match old, new:
            case (JsonCombination(), JsonCombination()) | (JsonNothing(), _) | (_, JsonAnything()):
                return False
            case _, JsonCombination(criterion=criterion, parts=parts):
                # What fits one part of a choice fits the choice.
                may_fit = len(parts) == 1 or criterion is not Criterion.ALL
                kind, inners = "SUM_TYPE_EXTENDED", [(old, part) for part in parts]
            case JsonCombination(criterion=criterion, parts=parts), _:
                # What fits all parts fits each of them.
                may_fit = len(parts) == 1 or criterion is Criterion.ALL
                kind, inners = "PRODUCT_TYPE_NARROWED", [(part, new) for part in parts]
            case _:
                return False
        for one, other in inners if may_fit else ():
            inner = self.compare(one, other)
            if inner.fits:
                pair.include(inner)
                if len(inners) > 1:
                    _note(pair, kind)
                return True
        return False

    def _combinations(self, pair: Pair, old: JsonCombination, new: JsonCombination) -> None:
        # With another criterion, parts that fit do not make the whole fit.
        if not _compare_criteria(pair, old, new):
            return
        # More alternatives allow more, more conditions allow less.
        is_product = new.criterion is Criterion.ALL
        if len(old.parts) < len(new.parts):
            _note(pair, "PRODUCT_TYPE_EXTENDED" if is_product else "SUM_TYPE_EXTENDED")
        elif len(old.parts) > len(new.parts):
            _note(pair, "PRODUCT_TYPE_NARROWED" if is_product else "SUM_TYPE_NARROWED")
        inners: dict[tuple[int, int], Pair] = {}
        edges: list[list[int]] = []
        for index, one in enumerate(old.parts):
            # All pairs: a part may have moved to another place.
            found = [self.compare(one, other) for other in new.parts]
            inners.update({(index, to): each for to, each in enumerate(found)})
            edges.append([to for to, each in enumerate(found) if each.fits])
        # Each part may stand for one other, so the best choice of all counts.
        matches = match_most(edges, len(new.parts))
        for index, to in sorted(matches.items()):
            pair.include(inners[index, to], (old.criterion, str(index)))
        if len(matches) < min(len(old.parts), len(new.parts)):
            _note(pair, "COMBINED_TYPE_SUBSCHEMAS_CHANGED")

    def _mappings(self, pair: Pair, old: JsonMapping, new: JsonMapping) -> None:
        # Added properties are judged below, with their content model.
        for name in (each for each in old.properties if each in new.properties):
            if name in old.required and name not in new.required:
                _note(pair, "REQUIRED_ATTRIBUTE_REMOVED", "required", name)
            elif name in new.required and name not in old.required:
                has_default = follow(new.properties[name]).has_default
                kind = "REQUIRED_ATTRIBUTE_WITH_DEFAULT_ADDED"
                _note(pair, kind if has_default else "REQUIRED_ATTRIBUTE_ADDED", "required", name)
        # The old order first: a diff reads as the old schema does.
        for name in dict.fromkeys((*old.properties, *new.properties)):
            if name not in new.properties:
                self._removed_property(pair, name, old.properties[name], new)
            elif name not in old.properties:
                self._added_property(pair, name, old, new)
            else:
                inner = old.properties[name], new.properties[name]
                self._include(pair, *inner, "properties", name)
        _compare_names(pair, old, new)
        for name in dict.fromkeys((*old.schema_with, *new.schema_with)):
            if name not in new.schema_with:
                _note(pair, "DEPENDENCY_SCHEMA_REMOVED", "dependencies", name)
            elif name not in old.schema_with:
                _note(pair, "DEPENDENCY_SCHEMA_ADDED", "dependencies", name)
            else:
                inner = old.schema_with[name], new.schema_with[name]
                self._include(pair, *inner, "dependencies", name)
        self._rests(pair, old.additional, new.additional, "additionalProperties")
        self._rests(pair, old.unevaluated, new.unevaluated, "unevaluatedProperties")
        _compare_limits(pair, old, new, _MAPPING_LIMITS)

    def _removed_property(self, pair: Pair, name: str, old: JsonType, new: JsonMapping) -> None:
        path = ("properties", name)
        # The new schema reads: what it allows beside its properties counts.
        covering = self._covering(new, name)
        if isinstance(covering, JsonAnything):
            _note(pair, "PROPERTY_REMOVED_FROM_OPEN_CONTENT_MODEL", *path)
        elif covering is not None:
            fits = self._include(pair, old, covering, *path)
            word = "IS" if fits else "NOT"
            _note(pair, f"PROPERTY_REMOVED_{word}_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL", *path)
        elif isinstance(follow(old), JsonNothing):
            _note(pair, "PROPERTY_WITH_FALSE_REMOVED_FROM_CLOSED_CONTENT_MODEL", *path)
        else:
            _note(pair, "PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL", *path)

    def _added_property(self, pair: Pair, name: str, old: JsonMapping, new: JsonMapping) -> None:
        path, added = ("properties", name), new.properties[name]
        # The old schema wrote: what it allowed under this name may be there.
        covering = self._covering(old, name)
        is_open = isinstance(covering, JsonAnything)
        if is_open and isinstance(follow(added), JsonAnything):
            _note(pair, "PROPERTY_WITH_EMPTY_SCHEMA_ADDED_TO_OPEN_CONTENT_MODEL", *path)
            if name not in new.required or follow(added).has_default:
                return
        elif not is_open and covering is not None:
            fits = self._include(pair, covering, added, *path)
            word = "IS" if fits else "NOT"
            _note(pair, f"PROPERTY_ADDED_{word}_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL", *path)
        # Whatever covers it, a required one is absent from what was written.
        model = "OPEN" if is_open else "UNOPEN"
        how = "OPTIONAL_PROPERTY"
        if name in new.required:
            has_default = follow(added).has_default
            how = "REQUIRED_PROPERTY_WITH_DEFAULT" if has_default else "REQUIRED_PROPERTY"
        _note(pair, f"{how}_ADDED_TO_{model}_CONTENT_MODEL", *path)

    def _covering(self, found: JsonMapping, name: str) -> JsonType | None:
        """Return the schema of a property that is not named; None if there may be none."""
        for pattern, each in found.patterns.items():
            if self.patterns.is_found(pattern, name):
                return follow(each)
        rest = found.additional if found.additional is not None else found.unevaluated
        if rest is None:
            # With patterns, a property that fits none of them is free, but the model is not open.
            return JsonAnything() if not found.patterns else None
        rest = follow(rest)
        return None if isinstance(rest, JsonNothing) else rest

    def _lists(self, pair: Pair, old: JsonList, new: JsonList) -> None:
        # One schema for all items, then those of the first ones.
        self._optional(pair, old.items, new.items, "items")
        shared = min(len(old.first_items), len(new.first_items))
        for number in range(shared):
            inner = old.first_items[number], new.first_items[number]
            self._include(pair, *inner, "items", str(number))
        for number in range(shared, len(old.first_items)):
            self._removed_item(pair, number, old.first_items[number], new)
        for number in range(shared, len(new.first_items)):
            self._added_item(pair, number, old, new.first_items[number])
        self._rests(pair, old.additional, new.additional, "additionalItems")
        self._rests(pair, old.unevaluated, new.unevaluated, "unevaluatedItems")
        _compare_limits(pair, old, new, _LIST_LIMITS)
        if old.is_unique != new.is_unique:
            kind = "UNIQUE_ITEMS_REMOVED" if old.is_unique else "UNIQUE_ITEMS_ADDED"
            _note(pair, kind, "uniqueItems")

    def _removed_item(self, pair: Pair, number: int, old: JsonType, new: JsonList) -> None:
        path = ("items", str(number))
        covering = _covering_items(new)
        if isinstance(covering, JsonAnything):
            _note(pair, "ITEM_REMOVED_FROM_OPEN_CONTENT_MODEL", *path)
        elif covering is not None:
            fits = self._include(pair, old, covering, *path)
            word = "IS" if fits else "NOT"
            _note(pair, f"ITEM_REMOVED_{word}_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL", *path)
        elif isinstance(follow(old), JsonNothing):
            _note(pair, "ITEM_WITH_FALSE_REMOVED_FROM_CLOSED_CONTENT_MODEL", *path)
        else:
            _note(pair, "ITEM_REMOVED_FROM_CLOSED_CONTENT_MODEL", *path)

    def _added_item(self, pair: Pair, number: int, old: JsonList, new: JsonType) -> None:
        path = ("items", str(number))
        covering = _covering_items(old)
        if isinstance(covering, JsonAnything):
            is_empty = isinstance(follow(new), JsonAnything)
            kind = "ITEM_WITH_EMPTY_SCHEMA_ADDED_TO_OPEN_CONTENT_MODEL"
            _note(pair, kind if is_empty else "ITEM_ADDED_TO_OPEN_CONTENT_MODEL", *path)
        elif covering is not None:
            fits = self._include(pair, covering, new, *path)
            word = "IS" if fits else "NOT"
            _note(pair, f"ITEM_ADDED_{word}_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL", *path)
        else:
            _note(pair, "ITEM_ADDED_TO_CLOSED_CONTENT_MODEL", *path)

    def _optional(self, pair: Pair, old: JsonType | None, new: JsonType | None, *path: str) -> None:
        if old is None and new is not None:
            _note(pair, "SCHEMA_ADDED", *path)
        elif old is not None and new is None:
            _note(pair, "SCHEMA_REMOVED", *path)
        elif old is not None and new is not None:
            self._include(pair, old, new, *path)

    def _rests(self, pair: Pair, old: JsonType | None, new: JsonType | None, keyword: str) -> None:
        """Compare what is allowed beside what is named: nothing, anything, or a schema."""
        name = "".join(f"_{each}" if each.isupper() else each for each in keyword).upper()
        old, new = (None if each is None else follow(each) for each in (old, new))
        was_closed, is_closed = isinstance(old, JsonNothing), isinstance(new, JsonNothing)
        # An absent keyword allows what true allows.
        was_open = old is None or isinstance(old, JsonAnything)
        is_open = new is None or isinstance(new, JsonAnything)
        if was_closed != is_closed:
            _note(pair, f"{name}_{'ADDED' if was_closed else 'REMOVED'}", keyword)
        elif was_open != is_open:
            _note(pair, f"{name}_{'NARROWED' if was_open else 'EXTENDED'}", keyword)
        elif not was_closed and not was_open and old is not None and new is not None:
            self._include(pair, old, new, keyword)


def _covering_items(found: JsonList) -> JsonType | None:
    rest = found.additional if found.additional is not None else found.unevaluated
    if rest is None:
        return JsonAnything()
    rest = follow(rest)
    return None if isinstance(rest, JsonNothing) else rest


def _compare_criteria(pair: Pair, old: JsonCombination, new: JsonCombination) -> bool:
    """Compare how many parts have to fit; whether the parts are to be compared."""
    if old.criterion is new.criterion:
        return True
    # With one part, all three criteria allow the same values.
    was_single, is_single = len(old.parts) == 1, len(new.parts) == 1
    may_change = {
        Criterion.ANY: True,
        Criterion.ONE: was_single,
        Criterion.ALL: was_single and is_single,
    }
    is_extended = may_change[new.criterion]
    _note(pair, "COMBINED_TYPE_EXTENDED" if is_extended else "COMBINED_TYPE_CHANGED")
    return is_extended


def _compare_limits(pair: Pair, old: object, new: object, limits: _Limits) -> None:
    for attribute, keyword in limits:
        before: Fraction | None = getattr(old, attribute)
        after: Fraction | None = getattr(new, attribute)
        if before == after:
            continue
        name = "".join(f"_{each}" if each.isupper() else each for each in keyword).upper()
        if before is None or after is None:
            _note(pair, f"{name}_{'ADDED' if before is None else 'REMOVED'}", keyword)
        else:
            _note(pair, f"{name}_{'INCREASED' if before < after else 'DECREASED'}", keyword)


def _compare_texts(pair: Pair, old: JsonText, new: JsonText) -> None:
    _compare_limits(pair, old, new, _TEXT_LIMITS)
    if old.pattern == new.pattern:
        return
    # Whether one pattern allows what another does is not decided.
    if old.pattern is None:
        _note(pair, "PATTERN_ADDED", "pattern")
    else:
        _note(pair, "PATTERN_REMOVED" if new.pattern is None else "PATTERN_CHANGED", "pattern")


def _compare_numbers(pair: Pair, old: JsonNumber, new: JsonNumber) -> None:
    _compare_limits(pair, old, new, _NUMBER_LIMITS)
    before, after = old.multiple_of, new.multiple_of
    if before != after:
        if before is None or after is None:
            kind = "MULTIPLE_OF_ADDED" if before is None else "MULTIPLE_OF_REMOVED"
        # Exact, since the limits are fractions: 0.3 is a multiple of 0.1.
        elif after % before == 0:
            kind = "MULTIPLE_OF_EXPANDED"
        else:
            kind = "MULTIPLE_OF_REDUCED" if before % after == 0 else "MULTIPLE_OF_CHANGED"
        _note(pair, kind, "multipleOf")
    if old.is_integer != new.is_integer:
        _note(pair, "TYPE_EXTENDED" if old.is_integer else "TYPE_NARROWED")


def _compare_values(pair: Pair, old: JsonEnumeration, new: JsonEnumeration) -> None:
    if old.values == new.values:
        return
    if old.values < new.values:
        _note(pair, "ENUM_ARRAY_EXTENDED", "enum")
    else:
        is_less = new.values < old.values
        _note(pair, "ENUM_ARRAY_NARROWED" if is_less else "ENUM_ARRAY_CHANGED", "enum")


def _compare_names(pair: Pair, old: JsonMapping, new: JsonMapping) -> None:
    for name in dict.fromkeys((*old.required_with, *new.required_with)):
        before, after = old.required_with.get(name), new.required_with.get(name)
        if before == after:
            continue
        if before is None or after is None:
            word = "ADDED" if before is None else "REMOVED"
        elif before < after:
            word = "EXTENDED"
        else:
            word = "NARROWED" if after < before else "CHANGED"
        _note(pair, f"DEPENDENCY_ARRAY_{word}", "dependencies", name)
