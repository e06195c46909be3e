"""Plan: what a life of one partition is like apart from its seed: its rules and its planted faults.

The shipped machines have their own switches (`replica_state.Rules`); what stands around them here,
a log, an ideal controller and a broker's answers, has those of this module.
"""

from __future__ import annotations

from dataclasses import dataclass

from streamlog.broker.replication.replica_state import CORRECT, ReplicaRules


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One kind of life. All planted faults are absent unless said."""

    rules: ReplicaRules = CORRECT
    strict: bool = True
    """Whether only what is on disk counts (`flush=always`)."""
    violent: bool = False
    """Leaders change all the time, and messages come very late."""
    duration_ms: int = 12_000
    elects_anybody: bool = False
    """Planted: a leader from outside of the in-sync set, and nobody is told."""
    accepts_old_partition_epochs: bool = False
    """Planted: AlterPartition without comparing the partition epoch."""
    accepts_old_broker_epochs: bool = False
    """Planted: AlterPartition without comparing the members' broker epochs."""
    accepts_late_proposals: bool = False
    """Planted: AlterPartition that was refused for its replicas leaves the partition epoch."""
    keeps_unclean_in_sync: bool = False
    """Planted: a broker that may have lost records stays in sync when it comes back."""
    appends_duplicates: bool = False
    """Planted: sequence numbers are not looked at."""
    forgets_producers: bool = False
    """Planted: a new leader knows nothing of earlier producers."""
    answers_duplicates_at_once: bool = False
    """Planted: a batch that is there already is acknowledged without waiting for its commit."""


PLAIN = Plan()
