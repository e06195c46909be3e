from __future__ import annotations

import dataclasses
import warnings
from datetime import datetime

import pytest

pytest.importorskip("pyspark")

from examples.flights.app import app
from spark_bridge.stage_function import dump_pickle, load_pickle
from streamlog.serdes import serde_for
from tests.equality.programs import build


@dataclasses.dataclass
class Sale:
    shop: str
    at: datetime
    items: list[int]


def test_pickled_topologies_keep_functions_and_types() -> None:
    for topology in [app.topology(), *(_program(seed) for seed in range(5))]:
        again = load_pickle(dump_pickle(topology))
        assert again.describe() == topology.describe()


def _program(seed: int) -> object:
    warnings.simplefilter("ignore", UserWarning)
    return build(seed, "driver").app.topology()


@pytest.mark.parametrize("kind", [Sale, list[Sale], dict[str, int], str, int, float, bytes])
def test_pickled_serdes_write_equal_bytes(kind: type) -> None:
    sale = Sale("a", datetime.fromisoformat("2024-01-01T00:00:00+00:00"), [1, 2])
    values = {Sale: sale, str: "x", int: 1, float: 1.5, bytes: b"b"}
    value = values.get(kind, [sale] if kind == list[Sale] else {"a": 1})
    serde = serde_for(kind)
    again = load_pickle(dump_pickle(serde))
    assert again.dumps(value) == serde.dumps(value)
    assert again.loads(serde.dumps(value)) == value
