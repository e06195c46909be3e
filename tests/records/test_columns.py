from __future__ import annotations

from streamlog.records.columns import has_none


class Unequal:
    """Whoever compares it is wrong."""

    def __eq__(self, other: object) -> bool:
        raise AssertionError(other)

    __hash__ = None  # type: ignore[assignment]


def test_none_is_found_without_comparing() -> None:
    assert has_none([Unequal(), None])
    assert not has_none([Unequal(), 0, "", b""])
    assert not has_none(())
