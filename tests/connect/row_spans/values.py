"""Values that columns have, with those that JSON is strange about."""

from __future__ import annotations

from hypothesis import strategies as st

TEXTS = st.text() | st.text('\x00\x08\t\n\x0c\r\x1f"\\/\x7fé\u2028\U0001f600x', max_size=20)
VALUES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**63), 2**63 - 1)
    | st.sampled_from([0, -1, 2**63, 2**64, -(2**63), -(2**63) - 1, 10**30])
    | st.floats()
    | TEXTS
    | st.binary(max_size=20)
    | st.decimals(allow_nan=True)
    | st.datetimes()
    | st.datetimes(timezones=st.timezones())
    | st.dates()
    | st.times()
    | st.timedeltas()
    | st.uuids()
)
"""What a column of a database may have."""
NESTED = st.recursive(
    st.none() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
"""Arrays and objects, without what JSON lacks."""
