"""MirrorPlan: what is planted in a life of two clusters; each fault must be found.

The faults are in the shells around the shipped machines: each leaves out what a rule of
`mirror_reader`, `mirror_copy` or `link_reader` demands.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorPlan:
    """The planted faults of a life; none unless said."""

    ignores_topic_ids: bool = False
    """A topic of the source is fetched by its name, also after it was created again."""
    raises_no_epoch: bool = False
    """Batches of a higher leader epoch are appended without asking the controller."""
    cuts_below_era: bool = False
    """The reader knows of no offset below which nothing is cut."""
    cuts_in_own_epoch: bool = False
    """Committed records are cut without an epoch that the controller has begun for it."""
    keeps_progress_at_cut: bool = False
    """Followers count with what they had before the leader's log was cut."""
    appends_after_promotion: bool = False
    """An answer of the source that arrives after the promotion is appended."""
    takes_source_mark: bool = False
    """The source's high watermark is taken for that of the mirror."""
    serves_uncommitted: bool = False
    """The source serves records above its high watermark."""
    continues_era: bool = False
    """Promotion begins the next leader epoch instead of a new era."""
    promotes_at_lag_zero: bool = False
    """A promotion without loss waits for the reader's lag only, not for the mirror's replicas."""
    seals_without_epoch: bool = False
    """A seal begins no leader epoch, so that leaders that take records name the source's end."""
    compares_marks: bool = False
    """The source's high watermark counts as its end, though it commits what is beyond later."""
    begins_anew_in_company: bool = False
    """A mirror begins anew beyond its end while replicas that end lower may be elected."""
    cuts_without_file: bool = False
    """What only one cluster had is cut without being kept."""
    copies_positions_beyond_end: bool = False
    """A group's position is copied as it is, whatever the mirror has."""
    ignores_attempts: bool = False
    """A promotion that was given up, or superseded, is decided all the same."""


CORRECT = MirrorPlan()
"""No fault, as in production."""

FOUND: Mapping[str, int] = {
    "ignores_topic_ids": 1,
    "raises_no_epoch": 2,
    "cuts_in_own_epoch": 6,
    "appends_after_promotion": 6,
    "takes_source_mark": 0,
    "serves_uncommitted": 0,
    "continues_era": 36,
    "promotes_at_lag_zero": 2,
    "seals_without_epoch": 97,
    "compares_marks": 361,
    "begins_anew_in_company": 3,
    "cuts_without_file": 6,
    "copies_positions_beyond_end": 3,
    "ignores_attempts": 44,
}
"""The first seed, of a search from 0, that finds a fault. Those that are not here are rarer, and
have directed tests (`simulation.planted`)."""
