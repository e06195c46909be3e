"""Refusals of the parts of an admin request, and which of them are tried again."""

from __future__ import annotations

import pytest

from streamlog.client.admin.admin_area import Outcome, raise_refused
from streamlog.errors import LogError
from streamlog.protocol.error_codes import ErrorCode

NOBODY = ErrorCode.NOT_CONTROLLER
LATE = ErrorCode.REQUEST_TIMED_OUT
THERE = ErrorCode.TOPIC_ALREADY_EXISTS


@pytest.mark.parametrize(
    ("codes", "retriable", "expected"),
    [
        # While a controller is elected, nothing was created: all of it can be asked for again.
        ((NOBODY, NOBODY), False, True),
        ((NOBODY, 0), False, False),
        ((0, NOBODY), False, False),
        ((NOBODY, THERE), False, False),
        # The topics may exist by now.
        ((LATE, LATE), False, False),
        ((LATE,), True, True),
        ((THERE,), True, False),
    ],
)
def test_a_request_of_several_parts_is_tried_again_if_nobody_has_looked_at_it(
    codes: tuple[int, ...], retriable: bool, expected: bool
) -> None:
    outcomes: list[Outcome] = [(f"t{n}", code, None) for n, code in enumerate(codes)]
    with pytest.raises(LogError) as refused:
        raise_refused("create topic", iter(outcomes), retriable=retriable)
    assert refused.value.retriable is expected
    assert len(refused.value.refusals) == sum(map(bool, codes))


def test_nothing_is_raised_where_all_was_accepted() -> None:
    raise_refused("create topic", [("a", 0, None), ("b", 0, None)])
    raise_refused("create topic", [])
