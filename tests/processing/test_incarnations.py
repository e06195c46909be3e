"""Positions over several logs of one source, against a model that numbers sent records."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from streamlog.processing.provenance import (
    TAGS_MAX,
    Incarnations,
    add_tag,
    identity,
    source_of,
    strip_tag,
)

SOURCE = ("topic", 3)


@dataclass
class SourceState:
    """The last position of the source."""

    position: int = -1


def fresh() -> tuple[SourceState, Incarnations[SourceState]]:
    state = SourceState()
    return state, Incarnations({SOURCE: state}, lambda each: each.position)


@given(
    st.lists(
        # Successive logs: the number of records, and the first repeated one.
        st.tuples(st.integers(0, 9), st.integers(0, 9), st.booleans()),
        min_size=1,
        max_size=8,
    )
)
def test_only_repeated_records_are_recognized_as_repeated(
    logs: list[tuple[int, int, bool]],
) -> None:
    state, known = fresh()
    taken: list[tuple[int, int]] = []
    for number, (count, again, restarts) in enumerate(logs):
        tag = add_tag(identity(SOURCE), bytes([number]) * 16, 0)
        # A restarted task upstream sends the records since its last commit again.
        for position in [*range(count), *range(min(again, count), count)]:
            found = known.get(tag)
            assert found is not None
            source_state, base = found
            if base + position > source_state.position:
                source_state.position = base + position
                taken.append((number, position))
            if restarts:
                data = known.to_data()
                before = state.position
                state, known = fresh()
                state.position = before
                known.load(data)
    assert taken == [
        (number, at) for number, (count, _, _) in enumerate(logs) for at in range(count)
    ]


def test_only_the_newest_tags_are_kept() -> None:
    state, known = fresh()
    for number in range(TAGS_MAX + 5):
        found = known.get(add_tag(identity(SOURCE), bytes([number]) * 16, number))
        assert found is not None
        state.position = found[1] + 10
    ((_, _, tags),) = known.to_data()
    assert isinstance(tags, list)
    assert len(tags) == TAGS_MAX


def test_an_unknown_source_is_not_found() -> None:
    _, known = fresh()
    assert known.get(add_tag(identity(("topic", 4)), b"1" * 16, 0)) is None


@given(st.text(st.characters(min_codepoint=1, exclude_categories=["Cs"]), max_size=9),
       st.integers(0, 2**32 - 1), st.binary(max_size=16), st.integers(0, 9))  # fmt: skip
def test_a_tag_does_not_change_the_source(
    name: str, partition: int, topic_id: bytes, cuts: int
) -> None:
    own = identity((name, partition))
    assert strip_tag(add_tag(own, topic_id, cuts)) == strip_tag(own) == own
    assert source_of(add_tag(own, topic_id, cuts)) == (name, partition)
