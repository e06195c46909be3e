"""Rules: which safety rules of replication are in force: all of them, but in a simulation.

Each flag leaves one rule out, or does something that looks right and loses records. A simulator
that finds nothing proves nothing unless it finds these. What serves users passes `CORRECT`.
Rule of the file: one flag per planted fault, and no flag that changes anything while it is off.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Planted faults of a partition's replicas, all absent."""

    commits_on_append: bool = False
    """The high watermark follows the leader's own log: acks=all waits for nobody."""
    truncates_to_high_watermark: bool = False
    """A new follower cuts its log to its own high watermark (before KIP-101)."""
    compares_ends_only: bool = False
    """Where a follower's last epoch ended is looked at, but not which one it is (no KIP-279)."""
    skips_divergence_check: bool = False
    """A follower is taken to have what the leader has, up to where it asks from."""
    fetches_before_flush: bool = False
    """A follower asks for more, and so claims what it has, before that is on its disk."""
    shrinks_at_once: bool = False
    """A smaller in-sync set counts before the controller has confirmed it."""
    forgets_pending_isr: bool = False
    """The high watermark does not wait for a replica that has been proposed (no KIP-497)."""
    joins_before_epoch_start: bool = False
    """A replica may join that has not reached where the leader's epoch began (no KIP-966)."""
    ignores_broker_epochs: bool = False
    """What an earlier life of a broker has fetched counts for the present one (no KIP-903)."""
    ignores_leader_epochs: bool = False
    """The leader epoch in a fetch is not compared."""
    ignores_min_insync_in_commits: bool = False
    """The high watermark moves on however few replicas are in sync."""
    ignores_min_insync_in_answers: bool = False
    """A producer is answered without an error however few replicas are in sync."""
    repeats_fetch_ids: bool = False
    """The numbers of fetches begin anew with every life of a broker."""
    takes_old_metadata: bool = False
    """What was committed before this life of the broker was registered is acted upon."""
    ignores_generations: bool = False
    """A sync that began before a truncation counts after it."""


CORRECT = Rules()
"""Of everything that serves users."""
