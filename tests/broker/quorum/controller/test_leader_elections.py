"""The ISR, the eligible replicas and the leader after a change of a partition."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streamlog.broker.quorum.controller.leader_elections import (
    ElectionRules,
    PartitionWish,
    Terms,
    change_of,
)
from streamlog.broker.quorum.metadata.registrations import NO_LEADER, PartitionRegistration

BROKERS = (1, 2, 3, 4)
some = st.frozensets(st.sampled_from(BROKERS))


@st.composite
def partitions(draw: st.DrawFn) -> PartitionRegistration:
    replicas = draw(st.permutations(BROKERS))[: draw(st.integers(1, 4))]
    isr = [each for each in replicas if draw(st.booleans())]
    out = [each for each in replicas if each not in isr]
    leader = draw(st.sampled_from([*isr, NO_LEADER]))
    elr = [each for each in out if draw(st.booleans())]
    return PartitionRegistration(
        replicas=tuple(replicas), isr=tuple(isr), leader=leader, elr=tuple(elr)
    )


wishes = st.builds(
    PartitionWish,
    gone=some,
    doubtful=some,
    lost=some,
    prefers=st.booleans(),
    renews=st.booleans(),
)
terms = st.builds(Terms, active=some, min_insync=st.integers(1, 3), allows_unclean=st.booleans())


def after(before: PartitionRegistration, wish: PartitionWish, on: Terms) -> PartitionRegistration:
    _, record = change_of(before, wish, on)
    return before if record is None else before.changed(record)


@given(partitions(), wishes, terms)
def test_every_change_keeps_the_invariants(
    before: PartitionRegistration, wish: PartitionWish, on: Terms
) -> None:
    now = after(before, wish, on)
    assert {*now.isr} <= {*now.replicas}
    assert not {*now.elr} & {*now.isr}
    is_unclean = now.last_unclean_epoch != before.last_unclean_epoch
    if now.leader == NO_LEADER:
        assert not {*now.isr} & {*on.active}
        assert not {*now.elr} & {*on.active}
    else:
        assert now.leader in now.isr
        assert now.leader in on.active
    had = {*before.isr, *before.elr}
    if not is_unclean:
        assert {*now.isr} <= had
        assert {*now.elr} <= had
        assert not {*wish.lost} & {*now.isr, *now.elr}
    assert not is_unclean or on.allows_unclean
    assert not {*wish.doubtful} & {*now.elr}
    if len(now.isr) >= on.min_insync:
        assert now.elr == ()
    if now.leader not in (before.leader, NO_LEADER) or is_unclean:
        assert now.leader_epoch == before.leader_epoch + 1


@given(partitions(), terms)
def test_a_second_evaluation_changes_nothing(before: PartitionRegistration, on: Terms) -> None:
    now = after(before, PartitionWish(), on)
    assert after(now, PartitionWish(), on) == now


@given(partitions(), wishes, terms)
def test_an_intact_in_sync_replica_stays_eligible_while_the_isr_is_small(
    before: PartitionRegistration, wish: PartitionWish, on: Terms
) -> None:
    now = after(before, wish, on)
    few = len(now.isr) < on.min_insync and now.last_unclean_epoch == before.last_unclean_epoch
    kept = {*before.isr} - {*wish.lost} - {*wish.doubtful}
    assert not few or kept <= {*now.isr, *now.elr}


PARTITION = PartitionRegistration(replicas=(1, 2, 3), isr=(1, 2, 3), leader=1)


def on(*active: int, min_insync: int = 2, allows_unclean: bool = False) -> Terms:
    return Terms(active=active, min_insync=min_insync, allows_unclean=allows_unclean)


def test_the_first_available_replica_leads() -> None:
    now = after(PARTITION, PartitionWish(gone={1}), on(2, 3))
    assert (now.leader, now.isr, now.elr) == (2, (2, 3), ())


def test_the_last_in_sync_replica_stays_in_sync() -> None:
    last = PartitionRegistration(replicas=(1, 2, 3), isr=(1,), leader=1)
    now = after(last, PartitionWish(gone={1}), on(2, 3))
    assert (now.leader, now.isr) == (NO_LEADER, (1,))


def test_an_eligible_replica_succeeds_the_last_in_sync_one() -> None:
    last = PartitionRegistration(replicas=(1, 2, 3), isr=(1,), leader=1, elr=(2,))
    now = after(last, PartitionWish(gone={1}), on(2, 3))
    assert (now.leader, now.isr, now.elr, now.last_unclean_epoch) == (2, (2,), (1,), -1)


def test_an_unclean_election_needs_permission() -> None:
    last = PartitionRegistration(replicas=(1, 2, 3), isr=(1,), leader=1)
    assert after(last, PartitionWish(gone={1}), on(3)).leader == NO_LEADER
    now = after(last, PartitionWish(gone={1}), on(3, allows_unclean=True))
    assert (now.leader, now.isr, now.last_unclean_epoch) == (3, (3,), 1)


def test_a_leader_that_stays_gets_a_new_epoch_only_on_request() -> None:
    assert change_of(PARTITION, PartitionWish(), on(1, 2, 3))[1] is None
    assert after(PARTITION, PartitionWish(renews=True), on(1, 2, 3)).leader_epoch == 1


def test_the_preferred_leader_takes_over_if_it_is_in_sync() -> None:
    led = PartitionRegistration(replicas=(1, 2, 3), isr=(1, 2), leader=2)
    assert after(led, PartitionWish(), on(1, 2)).leader == 2
    assert after(led, PartitionWish(prefers=True), on(1, 2)).leader == 1
    assert after(led, PartitionWish(prefers=True), on(2)).leader == 2


def test_without_the_in_sync_rule_any_replica_is_elected() -> None:
    last = PartitionRegistration(replicas=(1, 2, 3), isr=(1,), leader=1)
    lax = Terms(active=(3,), min_insync=2, rules=ElectionRules(elects_in_sync=False))
    assert after(last, PartitionWish(gone={1}), lax).leader == 3
