"""What a session refuses before Java is started."""

from __future__ import annotations

import socket

import pytest

from spark_bridge import session
from streamlog.errors import ConfigError


def test_a_master_that_is_not_there_is_one_message() -> None:
    with socket.socket() as held:
        # Bound and not listening: nobody else gets the port, and nobody answers.
        held.bind(("127.0.0.1", 0))
        host, port = held.getsockname()
        with pytest.raises(ConfigError, match=f"no Spark master answers at spark://{host}"):
            session("nobody", f"spark://{host}:{port},{host}:none")
