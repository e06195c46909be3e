"""Refusals of a session before Java starts."""

from __future__ import annotations

import socket

import pytest

from spark_bridge import session
from streamlog.errors import ConfigError


def test_an_unreachable_master_is_one_message() -> None:
    with socket.socket() as listener:
        # Bound but not listening: the port is reserved, and connections are refused.
        listener.bind(("127.0.0.1", 0))
        host, port = listener.getsockname()
        with pytest.raises(ConfigError, match=f"no Spark master answers at spark://{host}"):
            session("nobody", f"spark://{host}:{port},{host}:none")
