"""A broker over a fresh directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.broker.node import Node


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path / "data")
