"""Runs: in whatever order they are written, each due time has one owner."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.dsl.schedules import Interval, Misfire
from streamlog.errors import CorruptData
from streamlog.worker.schedules.schedule_runs import Runs

HOURLY = Interval(0, 100)


def test_the_first_claim_wins() -> None:
    known = Runs(done_ms=50)
    one, other = known.claim(100, "one"), known.claim(100, "other")
    both = known.merge(one).merge(other)
    assert (both.by, both.is_open) == ("one", True)
    done = both.merge(one.done(100))
    assert (done.done_ms, done.is_open) == (100, False)
    # A late claim on a finished run changes nothing.
    late = Runs(done_ms=50).claim(100, "late")
    assert done.merge(late) == done
    assert done.merge(done.claim(200, "one")).merge(late.done(100)).is_open


def test_an_interrupted_run_is_claimed_again_once() -> None:
    open_run = Runs(done_ms=0).claim(100, "dead")
    one, other = open_run.claim(100, "one"), open_run.claim(100, "other")
    assert open_run.merge(other).merge(one).by == "other"
    assert open_run.merge(other).merge(open_run.done(100)).done_ms == 100


@pytest.mark.parametrize(
    ("misfire", "now_ms", "runs"),
    [
        ("skip", 100, []),
        ("skip", 250, [200]),
        ("once", 100, [100]),
        ("once", 350, [300]),
        ("all", 350, [100, 200, 300]),
    ],
)
def test_the_misfire_policy_decides_on_an_interrupted_run(
    misfire: Misfire, now_ms: int, runs: list[int]
) -> None:
    assert Runs(done_ms=0).claim(100, "dead").to_run(HOURLY, now_ms, misfire) == runs
    assert Runs(done_ms=100).to_run(HOURLY, 199, misfire) == []


@given(st.integers(0, 10_000), st.integers(1, 4))
def test_each_due_time_runs_once_with_many_leaders(seed: int, leaders: int) -> None:
    """All believe that they lead. They read and write one log in turns, and crash during runs."""
    rng = Random(seed)
    log: list[Runs] = [Runs(0)]
    read = dict.fromkeys(range(leaders), 0)
    knows: dict[int, Runs | None] = dict.fromkeys(range(leaders))
    claims: dict[int, Runs] = {}
    began: list[tuple[int, int]] = []
    finished: list[int] = []

    def catch_up(leader: int) -> Runs:
        for record in log[read[leader] :]:
            known = knows[leader]
            knows[leader] = record if known is None else known.merge(record)
        read[leader] = len(log)
        known = knows[leader]
        assert known is not None
        return known

    now_ms = 0
    for _ in range(60):
        now_ms += rng.randrange(40)
        leader = rng.randrange(leaders)
        if leader in claims:
            claim = claims.pop(leader)
            known = catch_up(leader)
            if (known.claimed_ms, known.attempt, known.by) == (
                claim.claimed_ms,
                claim.attempt,
                claim.by,
            ):
                began.append((claim.claimed_ms, claim.attempt))
                if rng.random() < 0.8:
                    finished.append(claim.claimed_ms)
                    log.append(claim.done(claim.claimed_ms))
            continue
        known = catch_up(leader) if rng.random() < 0.5 or knows[leader] is None else knows[leader]
        assert known is not None
        for due_ms in known.to_run(HOURLY, now_ms, "all")[:1]:
            claims[leader] = known.claim(due_ms, str(leader))
            log.append(claims[leader])
    assert len({*began}) == len(began)
    assert sorted({*finished}) == [*dict.fromkeys(finished)]


def test_run_records_round_trip_and_others_are_refused() -> None:
    runs = Runs(5, 10, 2, "me")
    assert Runs.decode(runs.encode()) == runs
    with pytest.raises(CorruptData, match="is malformed"):
        Runs.decode(b"{}")
    with pytest.raises(CorruptData, match="format 9"):
        Runs.decode(runs.encode().replace(b'"format":1', b'"format":9'))
