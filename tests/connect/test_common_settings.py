"""Settings that every connector may have."""

from __future__ import annotations

from streamlog.connect.common_settings import without_effect


def test_settings_without_effect_are_named() -> None:
    settings = {
        "name": "nginx",
        "errors.tolerance": "all",
        "producer.override.linger.ms": "5",
        "topic.creation.enable": "1000",
    }
    assert without_effect(settings) == ["producer.override.linger.ms", "topic.creation.enable"]
    assert without_effect({"name": "nginx", "topic": "t"}) == []
