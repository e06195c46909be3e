"""Where a command gets its security settings from, and a broker its settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamlog import App
from streamlog.cli.broker_command import FlushChoice, broker_config
from streamlog.cli.session import Session
from streamlog.errors import ConfigError


def test_a_security_file_overrides_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STREAMLOG_SASL_PASSWORD", "from the environment")
    monkeypatch.setenv("STREAMLOG_SASL_USERNAME", "bob")
    file = tmp_path / "client.properties"
    file.write_text("security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.username=alice\n")
    security = Session(security_file=str(file)).security()
    assert (security.user, security.password) == ("alice", "from the environment")
    with pytest.raises(ConfigError, match=r"security\.protocol is PLAINTEXT"):
        Session().security()


def test_without_settings_there_is_no_security(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SECURITY_PROTOCOL", "SASL_USERNAME", "SASL_PASSWORD"):
        monkeypatch.delenv(f"STREAMLOG_{name}", raising=False)
    assert Session().security().protocol == "PLAINTEXT"


def test_the_apps_security_applies_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SECURITY_PROTOCOL", "SASL_USERNAME", "SASL_PASSWORD"):
        monkeypatch.delenv(f"STREAMLOG_{name}", raising=False)
    app = App("a", security={"security.protocol": "SSL", "ssl.ca.location": "ca.pem"})
    assert Session(app).security() is app.security
    file = tmp_path / "client.properties"
    file.write_text(
        "security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\nsasl.username=alice\nsasl.password=x\n"
    )
    given = Session(app, security_file=str(file)).security()
    assert (given.protocol, given.ca_file) == ("SASL_SSL", "")
    monkeypatch.setenv("STREAMLOG_SECURITY_PROTOCOL", "PLAINTEXT")
    assert Session(app).security().protocol == "PLAINTEXT"


def test_a_broker_reads_its_settings_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "broker.properties"
    file.write_text("flush=os\nlisteners=SSL://:9093\nnum.partitions=7\n")
    given = broker_config(file, None)
    assert (given.flush, given.num_partitions) == ("os", 7)
    assert given.security.listeners == "SSL://:9093"
    assert broker_config(file, FlushChoice.ALWAYS).flush == "always"
    assert broker_config(None, None).flush == "always"
    file.write_text("ssl.keystore.locatoin=x\n")
    with pytest.raises(ConfigError, match=r"did you mean 'ssl\.keystore\.location'"):
        broker_config(file, None)
