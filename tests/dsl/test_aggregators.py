from __future__ import annotations

from collections.abc import Callable

import pytest

from streamlog import agg
from streamlog.errors import TopologyError
from streamlog.nodes.stream_nodes import Aggregator


def test_an_aggregator_holds_its_settings_as_data() -> None:
    assert agg.sum("amount") == Aggregator("sum", "amount")
    assert agg.top(3, "name", by="amount") == Aggregator("top", "name", "amount", {"n": 3})
    assert agg.quantile("ms", 0.99).options == {"accuracy": 0.01, "q": 0.99}


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: agg.top(0, "amount"), "n must be 1 or more"),
        (lambda: agg.collect("amount", limit=0), "limit must be 1 or more"),
        (lambda: agg.quantile("ms", 99), "0.99, not 99"),
        (lambda: agg.quantile("ms", 0.5, accuracy=1.0), "accuracy of agg.quantile"),
        (lambda: agg.distinct("user", precision=3), "from 4 to 21"),
    ],
)
def test_settings_out_of_range_are_refused(make: Callable[[], object], words: str) -> None:
    with pytest.raises(TopologyError, match=words):
        make()
