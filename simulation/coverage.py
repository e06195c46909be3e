"""`python -m simulation.coverage`: how much of the state machines simulated lives run through.

A machine that simulation does not reach is one that it proves nothing about. Counted are lines of
the shipped modules, as lives alone run them: no test is run, and what is started by hand is not
counted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Final

import coverage

if TYPE_CHECKING:
    from simulation.life import Level

MACHINES: Final[Mapping[str, Sequence[str]]] = {
    "streamlog.broker.quorum.raft": ("raft_machine", "raft_state"),
    "streamlog.broker.quorum.controller": (
        "broker_control",
        "cluster_controller",
        "config_control",
        "leader_elections",
        "mirror_control",
        "partition_control",
        "seal_control",
        "security_control",
        "topic_control",
    ),
    "streamlog.broker.quorum.metadata": (
        "cluster_metadata",
        "mirror_topics",
        "registrations",
        "topic_seals",
    ),
    "streamlog.broker.quorum": ("broker_lifecycle",),
    "streamlog.broker.mirroring": ("group_copy", "link_plan"),
    "streamlog.broker.replication": (
        "follower_replica",
        "leader_replica",
        "mirror_reader",
        "replica",
        "replica_state",
    ),
    "streamlog.broker.coordinator.group": (
        "classic_group",
        "consumer_group",
        "committed_offsets",
        "group_member",
    ),
    "streamlog.broker.coordinator.transaction": (
        "coordinated_transaction",
        "marker_queue",
        "producer_ids",
        "transaction_coordinator",
    ),
}
"""State machines, by the room that they are in: what decides, and does no I/O."""
LEAST_PERCENT: Final = 90.0
SEEDS: Final[Mapping[str, int]] = {
    "raft": 60,
    "isr": 60,
    "controller": 30,
    "quorum": 5,
    "broker": 6,
    "cluster": 6,
    "mirror": 60,
}
"""Lives of each level that are enough to come everywhere."""
NEVER_RUN: Final = (r"if TYPE_CHECKING:", r"^\s*\.\.\.$")


def names() -> list[str]:
    """All modules, as they are imported."""
    return [f"{room}.{module}" for room, modules in MACHINES.items() for module in modules]


def main(arguments: Sequence[str] | None = None) -> int:
    """Live, tell, and return 1 if less than `LEAST_PERCENT` of all lines have been run."""
    parser = argparse.ArgumentParser(prog="simulation.coverage", description=__doc__)
    parser.add_argument("--seeds", type=int, help="lives of each level; some of each if not said")
    given = parser.parse_args(arguments)
    measured = coverage.Coverage(
        data_file=None,
        source_pkgs=names(),
        config_file=False,
    )
    for line in NEVER_RUN:
        measured.exclude(line)
    measured.start()
    try:
        # Imported while lines are counted: a module's own are run by that.
        levels: dict[str, Level] = import_module("simulation.levels").LEVELS
        for level, seeds in SEEDS.items():
            for seed in range(seeds if given.seeds is None else min(given.seeds, seeds)):
                life = levels[level](seed)
                if life.violations:
                    print(f"{level}: seed {seed} violates: {life.violations[0]}")
                    return 1
    finally:
        measured.stop()
    return _told(measured)


def _told(measured: coverage.Coverage) -> int:
    """A table of modules; whether it is enough."""
    run_lines = all_lines = 0
    for name in names():
        _, lines, _, missing, places = measured.analysis2(sys.modules[name])
        run_lines += len(lines) - len(missing)
        all_lines += len(lines)
        percent = 100 * (1 - len(missing) / max(len(lines), 1))
        print(f"{name:55}{len(lines):5} lines{percent:6.1f} %  {places}")
    percent = 100 * run_lines / all_lines
    print(f"{'all state machines':55}{all_lines:5} lines{percent:6.1f} %")
    return int(percent < LEAST_PERCENT)


if __name__ == "__main__":
    sys.exit(main())
