"""Memory and files of a process, and whether they grow."""

from __future__ import annotations

import pytest

from chaos.soak import PARTITION_BYTES_MAX, grown
from chaos.vitals import Vitals, growth_per_hour

HOUR_S = 3_600.0


def vitals(at_s: float, used_bytes: int, files: int = 50, partition_bytes: int = 0) -> Vitals:
    return Vitals(
        at_s=at_s,
        resident_bytes=2 * used_bytes,
        used_bytes=used_bytes,
        open_files=files,
        partition_bytes=partition_bytes,
    )


def test_growth_is_measured_between_the_smallest_values() -> None:
    at_times = [0, 100, 200, 1_800, 3_600, 3_700, 3_800]
    looks = [vitals(at_s, 100_000_000 + at_s * 1_000) for at_s in at_times]
    freed_lately = [vitals(each.at_s, each.used_bytes + 20_000_000) for each in looks[1::2]]
    mixed = sorted(looks[::2] + freed_lately, key=lambda each: each.at_s)
    # 0 and 3,800 are the smallest of their thirds, whose middles are 50 and 3,750.
    assert growth_per_hour(mixed) == pytest.approx(3_800_000 / 100_000_000 * 3_600 / 3_700)


def test_growth_needs_three_measurements() -> None:
    with pytest.raises(ValueError, match="2 looks have no thirds"):
        growth_per_hour([vitals(0, 1), vitals(1, 1)])


def test_a_stable_process_has_no_growth() -> None:
    looks = [vitals(at_s, 100_000_000 + at_s % 7) for at_s in range(0, 3_600, 200)]
    assert grown(looks, HOUR_S) == []


def test_growth_while_the_process_warms_up_is_ignored() -> None:
    looks = [vitals(0, 1), *(vitals(at_s, 100_000_000) for at_s in range(800, 3_600, 200))]
    assert grown(looks, HOUR_S) == []


@pytest.mark.parametrize(
    ("last", "message"),
    [
        (vitals(3_600, 110_000_000), "its memory grows by "),
        (vitals(3_600, 100_000_000, files=90), "it has 40 open files more than at the begin"),
        (
            vitals(3_600, 100_000_000, partition_bytes=PARTITION_BYTES_MAX + 1),
            f"a partition has {PARTITION_BYTES_MAX + 1} bytes",
        ),
    ],
)
def test_growth_is_reported(last: Vitals, message: str) -> None:
    looks = [vitals(1_000, 100_000_000), vitals(2_000, 100_000_000), last]
    (wrong,) = grown(looks, HOUR_S)
    assert wrong.startswith(message)


def test_a_short_measurement_proves_nothing() -> None:
    (wrong,) = grown([vitals(3_600, 1)], HOUR_S)
    assert "let it last for longer" in wrong
