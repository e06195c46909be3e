"""A value follows its files, and stays as it was if they can't be used."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamlog.clock import ManualClock
from streamlog.errors import ConfigError
from streamlog.followed_files import LOOK_INTERVAL_MS, FollowedFiles


def test_a_value_follows_its_files_and_outlives_bad_ones(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    clock, path, reads = ManualClock(), tmp_path / "number", 0

    def read() -> int:
        nonlocal reads
        reads += 1
        try:
            return int(path.read_text())
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path} has no number") from error

    with pytest.raises(ConfigError):
        FollowedFiles(read, [path], clock, name="numbers")
    path.write_text("1")
    followed = FollowedFiles(read, [path], clock, name="numbers")
    path.write_text("22")
    assert followed.value == 1, "looked at only at intervals"
    clock.advance(LOOK_INTERVAL_MS)
    assert [followed.value, followed.value] == [22, 22]
    assert f"reloaded the numbers: {path}" in caplog.text
    for spoil in (lambda: path.write_text("none"), path.unlink):
        spoil()
        reads = 0
        for _ in range(3):
            clock.advance(LOOK_INTERVAL_MS)
            assert followed.value == 22
        assert reads == 1, "a bad file is read once"
    assert "could not reload the numbers, keeping the previous ones" in caplog.text
    path.write_text("4")
    clock.advance(LOOK_INTERVAL_MS)
    assert followed.value == 4
