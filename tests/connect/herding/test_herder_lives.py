"""Herder: random lives of a group, with workers that are killed, join and read late."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streamlog.connect.herding.configs import ConnectConfigs
from streamlog.connect.herding.herder_requests import (
    ConnectorSlot,
    ConnectRefusal,
    DeleteConnector,
    PutConnector,
    RestartConnector,
    SetTarget,
)
from streamlog.connect.herding.lifecycle import TargetState
from tests.connect.herding.herder_group import PARTS, SOURCE, HerderGroup, group

steps = st.lists(
    st.one_of(
        st.tuples(st.just("read"), st.integers(0, 2)),
        st.tuples(st.just("discover"), st.just(0)),
        st.tuples(st.just("round"), st.just(0)),
        st.tuples(st.just("kill"), st.integers(0, 2)),
        st.tuples(st.just("join"), st.integers(0, 2)),
        st.tuples(st.just("parts"), st.integers(0, 5)),
        st.tuples(st.just("tick"), st.sampled_from([500, 40_000])),
        st.tuples(st.just("put"), st.integers(1, 4)),
        st.tuples(st.just("delete"), st.just(0)),
        st.tuples(st.just("target"), st.integers(0, 2)),
        st.tuples(st.just("fail"), st.integers(0, 3)),
        st.tuples(st.just("restart"), st.integers(0, 1)),
        st.tuples(st.just("compact"), st.just(0)),
    ),
    max_size=40,
)


@given(steps)
def test_in_every_life_parts_have_at_most_one_reader_and_exactly_one_in_the_end(
    life: list[tuple[str, int]],
) -> None:
    made = group("w0", "w1", "w2")
    for number, (what, by) in enumerate(life):
        step(made, number, what, by)
        read = made.readers("x")
        assert len(read) == len(set(read)), "a part has two readers"
    made.round()
    made.tick(400_000)
    made.settle()
    made.tick(400_000)
    made.settle()
    herder = made.members[made.leader].herder
    target = herder.configs.target("x")
    is_there = "x" in herder.configs.connectors and target is not TargetState.STOPPED
    assert made.readers("x") == (sorted(part["p"] for part in made.parts["x"]) if is_there else [])
    assert all(is_paused == (target is TargetState.PAUSED) for is_paused in made.running().values())
    made.compact()
    newcomer = ConnectConfigs()
    for offset, record in enumerate(made.log):
        if record is not None:
            newcomer.replay(*record, offset)
    assert newcomer.tasks.get("x", []) == herder.configs.tasks.get("x", [])
    assert (newcomer.connectors, newcomer.targets) == (
        herder.configs.connectors,
        herder.configs.targets,
    )
    assert not newcomer.inconsistent & newcomer.connectors.keys()


def step(made: HerderGroup, number: int, what: str, by: int) -> None:  # noqa: C901, PLR0912 - a case for each event
    """One event of a life; what is not possible at the moment is left out."""
    name = f"w{by}"
    herder = made.members[made.leader].herder if made.leader in made.members else None
    try:
        match what:
            case "read" if name in made.members:
                made.read(name)
            case "discover" if made.discoveries:
                made.discover()
            case "round":
                made.round()
            case "kill" if name in made.members and len(made.members) > 1:
                made.kill(name)
                made.wants_round = True
                if name == made.leader:
                    made.round()
            case "join" if name not in made.members:
                made.join(name)
                made.wants_round = True
            case "compact":
                made.compact()
            case "parts":
                made.parts["x"] = PARTS[:by]
            case "tick":
                made.tick(by)
            case "put" if herder:
                made.ask(number, PutConnector("x", {**SOURCE, "tasks.max": str(by)}))
            case "delete" if herder:
                made.ask(number, DeleteConnector("x"))
            case "target" if herder:
                made.ask(number, SetTarget("x", list(TargetState)[by]))
            case "fail":
                made.fail(ConnectorSlot("x", by))
            case "restart" if herder:
                made.ask(number, RestartConnector("x", include_tasks=True, only_failed=bool(by)))
            case _:
                pass
    except ConnectRefusal:
        pass
