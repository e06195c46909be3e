"""OTLP encoder: the decoder, and messages written from metrics.proto, agree with it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streamlog.metrics.otlp import Point, decode_metrics
from streamlog.metrics.otlp_encoder import ReportTimes, encode_metrics
from tests.metrics.otlp_messages import gauge, metrics, point, total

TIMES = ReportTimes(1_000_000_000, 2_000_000_000)
TEXTS = st.text(max_size=20)
ATTRIBUTES = st.lists(st.tuples(TEXTS, TEXTS), max_size=5).map(tuple)
POINTS = st.lists(
    st.builds(
        lambda name, attributes, value, is_sum, is_delta: Point(
            name,
            attributes,
            value,
            is_sum=is_sum,
            is_monotonic=is_sum,
            is_delta=is_sum and is_delta,
        ),
        st.text(min_size=1, max_size=200),
        ATTRIBUTES,
        st.floats(allow_nan=False),
        st.booleans(),
        st.booleans(),
    ),
    max_size=20,
)


@given(POINTS, ATTRIBUTES)
def test_what_is_encoded_is_decoded(
    points: list[Point], resource: tuple[tuple[str, str], ...]
) -> None:
    found = decode_metrics(encode_metrics(points, resource, TIMES))
    assert found.points == points
    assert found.resource == resource
    assert found.skipped == 0


def test_the_bytes_mean_the_same_as_those_of_the_schema() -> None:
    points = [
        Point("a.total", (("topic", "t"),), 3.0, is_sum=True, is_monotonic=True, is_delta=True),
        Point("a.avg", (), 1.5),
    ]
    by_schema = metrics(
        total("a.total", point(3.0, topic="t")), gauge("a.avg", point(1.5)), group_id="g"
    )
    ours = encode_metrics(points, (("group_id", "g"),), TIMES)
    assert decode_metrics(ours) == decode_metrics(by_schema)
