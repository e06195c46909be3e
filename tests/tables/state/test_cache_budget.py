"""CacheBudget: equal shares that never exceed the total."""

from __future__ import annotations

import gc

from hypothesis import given
from hypothesis import strategies as st

from streamlog.tables.state.store_transaction import ENTRY_BYTES, CacheBudget, StoreTransaction
from streamlog.tables.stores.memory_store import MemoryStore


class Member:
    """A member that records its bound."""

    bound_bytes = 0

    def resize(self, bound_bytes: int) -> None:
        self.bound_bytes = bound_bytes


@given(
    total=st.integers(0, 1_000),
    most=st.integers(1, 300),
    joins=st.lists(st.booleans(), max_size=30),
)
def test_shares_are_equal_and_within_the_total(total: int, most: int, joins: list[bool]) -> None:
    members: list[Member] = []
    lent: list[int] = []
    budget = CacheBudget(total, each_bytes_max=most, lend=lent.append)
    assert lent == [total]
    for is_join in joins:
        if is_join:
            members.append(Member())
            budget.join(members[-1])
        elif members:
            gone = members.pop(0)
            budget.leave(gone)
            assert gone.bound_bytes == 0
        assert len({member.bound_bytes for member in members}) <= 1
        assert lent[-1] + sum(member.bound_bytes for member in members) == total
        if members:
            assert members[0].bound_bytes == min(most, total // len(members))


def test_a_collected_member_returns_its_share() -> None:
    budget = CacheBudget(100)
    kept, lost = Member(), Member()
    budget.join(kept)
    budget.join(lost)
    assert kept.bound_bytes == 50
    del lost
    gc.collect()
    third = Member()
    budget.join(third)
    assert (kept.bound_bytes, third.bound_bytes) == (50, 50)


class CountingStore(MemoryStore):
    """A store that counts its reads."""

    reads = 0

    def get(self, key: bytes) -> bytes | None:
        self.reads += 1
        return super().get(key)


def test_a_cache_shrinks_when_another_joins_and_grows_when_it_leaves() -> None:
    keys = [b"%03d" % number for number in range(100)]
    # Enough for two generations of 100 entries each in one cache.
    budget = CacheBudget(2 * 100 * (ENTRY_BYTES + 3 + 3))
    store = CountingStore()
    store.write([(key, key) for key in keys])
    first = StoreTransaction(store, budget=budget)
    for _ in range(3):
        assert [first.get(key) for key in keys] == keys
    assert store.reads == 100
    second = StoreTransaction(MemoryStore(), budget=budget)
    for _ in range(3):
        assert [first.get(key) for key in keys] == keys
    assert store.reads > 200, "half of it is not enough"
    second.close()
    store.reads = 0
    for _ in range(5):
        assert [first.get(key) for key in keys] == keys
    assert store.reads <= 100
