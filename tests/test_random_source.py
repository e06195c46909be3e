from __future__ import annotations

from streamlog.random_source import Chance


def test_seed_and_position_determine_the_random_numbers() -> None:
    chance, again, other = Chance(b"a"), Chance(b"a"), Chance(b"b")
    drawn: dict[str, list[object]] = {}
    for name, each in (("chance", chance), ("again", again), ("other", other)):
        each.move(b"1")
        first = [each.random.random(), each.uuid(), each.uuid()]
        each.move(b"2")
        drawn[name] = [*first, each.random.random(), each.uuid()]
    assert drawn["chance"] == drawn["again"]
    assert len({*drawn["chance"], *drawn["other"]}) == 10
    chance.move(b"1")
    assert chance.random.random() == drawn["chance"][0]


def test_a_uuid_has_version_4() -> None:
    chance = Chance(b"")
    chance.move(b"")
    assert chance.uuid().version == 4
