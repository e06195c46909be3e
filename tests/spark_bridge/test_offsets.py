"""Options of the Spark source: what is taken, what is refused, and by which words."""

from __future__ import annotations

import pytest

from spark_bridge.offsets import OffsetRange, parse_options, resolve
from streamlog.errors import ConfigError

GOOD = {"path": "/data", "subscribe": "sales"}


def ranges(
    options: dict[str, str], *, partitions: int = 2, first: int = 3, end: int = 9
) -> list[OffsetRange]:
    parsed = parse_options({**GOOD, **options})
    return resolve(parsed, {"sales": partitions}, lambda _topic, _partition: (first, end))


def test_everything_is_read_by_default() -> None:
    assert ranges({}) == [OffsetRange("sales", 0, 3, 9), OffsetRange("sales", 1, 3, 9)]


def test_option_names_are_case_insensitive_as_spark_hands_them_over() -> None:
    assert parse_options({**GOOD, "includeheaders": "TRUE"}).include_headers


def test_offsets_by_partition_with_earliest_and_latest() -> None:
    asked = {"startingOffsets": '{"sales": {"0": -2, "1": 5}}'}
    asked["endingOffsets"] = '{"sales": {"0": 4, "1": -1}}'
    assert ranges(asked) == [OffsetRange("sales", 0, 3, 4), OffsetRange("sales", 1, 5, 9)]


def test_an_empty_range_is_left_out() -> None:
    assert ranges({}, first=9) == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"startingOffset": "earliest"}, "did you mean 'startingOffsets'"),
        ({"failOnDataLoss": "false"}, "no option 'failondataloss'"),
        ({"kafka.bootstrap.servers": "x:1"}, "either the option 'path'"),
        ({"subscribe": " , "}, "subscribe"),
        ({"subscribe": "purchases"}, "no topic 'purchases'"),
        ({"startingOffsets": "latest"}, "can't be 'latest'"),
        ({"endingOffsets": "earliest"}, "can't be 'earliest'"),
        ({"startingOffsets": "5"}, "neither 'earliest' nor 'latest' nor JSON"),
        ({"startingOffsets": '{"sales": {"0": 3}}'}, "leaves out sales-1"),
        ({"startingOffsets": '{"sales": {"0": 3, "1": 3, "2": 3}}'}, "names sales-2"),
        ({"startingOffsets": '{"sales": {"0": 3, "1": 10}}'}, "holds 3 up to 9"),
        ({"includeHeaders": "yes"}, "true or false"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ranges(options)
