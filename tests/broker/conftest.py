"""A broker on a disk in memory."""

from __future__ import annotations

import pytest

from tests.broker.node import Node


@pytest.fixture
def node() -> Node:
    return Node()
