"""What a session decides before Java starts."""

from __future__ import annotations

import socket

import pytest

from spark_bridge import session
from spark_bridge.spark_session import (
    EXECUTOR_JAVA_OPTIONS,
    JAVA_OPTIONS,
    QUICK_JAVA,
    java_options,
)
from streamlog.errors import ConfigError


def test_an_unreachable_master_is_one_message() -> None:
    with socket.socket() as listener:
        # Bound but not listening: the port is reserved, and connections are refused.
        listener.bind(("127.0.0.1", 0))
        host, port = listener.getsockname()
        with pytest.raises(ConfigError, match=f"no Spark master answers at spark://{host}"):
            session("nobody", f"spark://{host}:{port},{host}:none")


def test_options_of_java_are_added_to_those_that_are_given() -> None:
    given = {JAVA_OPTIONS: "-Da=1 -Dlog4j2.configurationFile=own", "spark.ui.enabled": "false"}
    assert java_options(given, {}, is_light=False) == {JAVA_OPTIONS: given[JAVA_OPTIONS]}
    assert java_options(given, {}, is_light=True) == {
        JAVA_OPTIONS: f"{QUICK_JAVA} {given[JAVA_OPTIONS]}",
        EXECUTOR_JAVA_OPTIONS: QUICK_JAVA,
    }
    (options,) = java_options({}, {}, is_light=False).values()
    assert options.startswith("-Dlog4j2.configurationFile=file:")


def test_options_in_a_directory_of_settings_are_not_replaced() -> None:
    own = {"SPARK_CONF_DIR": "/etc/spark"}
    assert java_options({JAVA_OPTIONS: "-Da=1"}, own, is_light=True) == {}
