"""Files that connectors may use: links are followed to their end, also those that change."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from streamlog.allowed_paths import (
    PathNotAllowed,
    allowed_paths,
    check_path,
    check_paths_in,
    directory_of,
    is_allowed,
    opener,
)
from streamlog.errors import ConfigError

SECRET = "the secret"


@pytest.fixture
def inside(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_text(SECRET)
    inside = tmp_path / "inside"
    (inside / "deep" / "deeper").mkdir(parents=True)
    (inside / "deep" / "deeper" / "file").write_text("ours")
    with allowed_paths([inside]):
        yield inside


def read(path: Path) -> str:
    with open(path, opener=opener) as file:
        return file.read()


def test_files_below_it_are_opened_also_by_links_that_stay_there(inside: Path) -> None:
    (inside / "link").symlink_to(inside / "deep")
    (inside / "current").symlink_to("deep/deeper/file")
    for path in ("deep/deeper/file", "link/deeper/file", "current", "deep/../current"):
        assert is_allowed(inside / path)
        assert read(inside / path) == "ours"
    with open(inside / "deep" / "made", "x", opener=opener) as file:
        file.write("new")
    assert (inside / "deep" / "made").read_text() == "new"
    with pytest.raises(FileNotFoundError):
        read(inside / "missing")


@pytest.mark.parametrize(
    "make",
    [
        lambda inside: inside.parent / "outside" / "file",
        lambda inside: inside / ".." / "outside" / "file",
        lambda inside: inside.parent / "inside-2" / "file",
        lambda inside: link(inside / "link", inside.parent / "outside") / "file",
        lambda inside: link(inside / "link", Path("../outside/file")),
        lambda inside: (
            link(inside / "link", link(inside / "deep" / "2", inside.parent)) / "outside"
        ),
        lambda inside: inside,
        lambda _: Path("/"),
        lambda _: Path("relative"),
    ],
)
def test_what_leads_out_is_neither_opened_nor_made(
    inside: Path, make: Callable[[Path], Path]
) -> None:
    path = make(inside)
    for mode in ("r", "w", "a", "x"):
        with pytest.raises(PathNotAllowed, match="--allow-path DIR"):
            open(path, mode, opener=opener).close()
    assert (inside.parent / "outside" / "file").read_text() == SECRET
    assert not (inside.parent / "inside-2").exists()


def link(path: Path, to: Path) -> Path:
    path.symlink_to(to)
    return path


def test_a_link_that_comes_between_the_check_and_the_opening_leads_nowhere(inside: Path) -> None:
    real, away = inside / "deep", inside / "away"
    (real / "file").write_text("ours")
    (inside.parent / "outside" / "deeper").mkdir()
    (inside.parent / "outside" / "deeper" / "file").write_text(SECRET)
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            real.rename(away)
            real.symlink_to(inside.parent / "outside")
            real.unlink()
            away.rename(real)

    swapping = threading.Thread(target=swap)
    swapping.start()
    found: dict[str, int] = {}
    try:
        for attempt in range(300_000):
            # On a busy machine the swapping thread may hold the interpreter for long stretches.
            if attempt >= 3_000 and "ours" in found:
                break
            for path in ("file", "deeper/file"):
                try:
                    what = read(real / path)
                # OSError: the link became a directory while it was followed.
                except (PathNotAllowed, OSError) as error:
                    what = type(error).__name__
                found[what] = found.get(what, 0) + 1
    finally:
        stop.set()
        swapping.join()
    assert SECRET not in found
    assert "ours" in found, "the test has read nothing"


def test_links_in_a_circle_lead_nowhere(inside: Path) -> None:
    circle = link(inside / "a", link(inside / "b", inside / "a"))
    check_path("file", circle)
    with pytest.raises(PathNotAllowed):
        read(circle)
    with pytest.raises(PathNotAllowed):
        read(circle / "file")


def test_nothing_is_allowed_without_a_directory_and_everything_without_the_option(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_text("ours")
    with allowed_paths(()):
        with pytest.raises(
            PathNotAllowed, match=r"^file='.*file' is a file: start .* --allow-path"
        ):
            check_path("file", tmp_path / "file")
        with pytest.raises(PathNotAllowed):
            read(tmp_path / "file")
    assert read(tmp_path / "file") == "ours"
    with directory_of(tmp_path / "file") as found:
        assert found == (None, str(tmp_path / "file"))
    with pytest.raises(ConfigError, match="no such directory"), allowed_paths([tmp_path / "no"]):
        pass
    with allowed_paths([Path("/")]):
        assert read(tmp_path / "file") == "ours"


def test_options_of_libraries_are_looked_at(inside: Path) -> None:
    check_paths_in("options", {"region": "eu-1", "key": f"{inside}/key", "n": "1"})
    for value in ("/etc/passwd", "~/.aws/credentials", "file:///etc/passwd", "file:/etc/passwd"):
        with pytest.raises(PathNotAllowed, match=r"^options\.key="):
            check_paths_in("options", {"key": value})
