"""How a process divides its file descriptors."""

from __future__ import annotations

import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from streamlog.broker.config.broker import BrokerConfig
from streamlog.broker.storage.disk.descriptors import DESCRIPTORS_PER_CONNECTION, RESERVED, shares


@given(st.integers(256, 2**20), st.integers(0, 100))
def test_all_shares_together_stay_within_the_limit(limit: int, taken: int) -> None:
    found = shares(limit, taken)
    connections = found.connections * DESCRIPTORS_PER_CONNECTION + found.backlog
    files = found.open_logs + found.mappings + found.reads
    assert max(taken, RESERVED) + connections + files <= limit
    assert min(found[1:]) > 0


@given(st.integers(0, 10_000))
def test_even_the_smallest_limit_allows_one_of_each(limit: int) -> None:
    assert min(shares(limit)[1:]) >= 1


def test_common_limits_allow_the_default_number_of_connections() -> None:
    assert shares(65_536).connections >= BrokerConfig().connections.max_connections


def test_the_soft_limit_is_raised_to_the_hard_one() -> None:
    code = (
        "import resource as r\n"
        "from streamlog.broker.storage.disk.descriptors import raise_limit, soft_limit\n"
        "hard = min(r.getrlimit(r.RLIMIT_NOFILE)[1], 4096)\n"
        "r.setrlimit(r.RLIMIT_NOFILE, (256, hard))\n"
        "assert raise_limit() == soft_limit() == hard, soft_limit()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
