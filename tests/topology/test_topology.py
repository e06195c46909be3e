from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from streamlog import App, Late, Windowed, tumbling
from streamlog.errors import TopologyError
from streamlog.nodes.window_nodes import WindowedAggregate
from streamlog.topology import Subtopology


@dataclass
class Click:
    user: str
    at: int


def clicks_app() -> App:
    app = App("clicks")
    clicks = app.topic("clicks", key=str, value=Click, timestamp=lambda c: c.at)
    users = app.topic("users", key=str, value=str, compact=True)
    named = app.topic("named", key=str, value=str)
    counts = app.topic("per-minute", key=Windowed[str], value=int)
    by_user = app.stream(clicks).rekey(lambda _, c: c.user, name="user")
    names = app.table(users, name="names")
    by_user.left_join(names, lambda c, name: name or c.user, name="with-name").to(named)
    by_user.group_by_key().windowed(tumbling("1m", grace="5s")).idle_after("30s").count(
        name="counts"
    ).changes().to(counts)
    return app


TEXT = """\
topology clicks
  sub-topology 0
    Source clicks-source from topic clicks
    Rekey user after clicks-source
    RepartitionSink user-repartition-sink to topic clicks-user-repartition after user
  sub-topology 1, state in clicks-1-changelog
    TableSource names from topic users
    Source user-repartition from topic clicks-user-repartition
    TableJoin with-name with names (left) after user-repartition
    Sink sink-6 to topic named after with-name
    WindowedAggregate counts windows of 1m, grace 5s, emit CLOSE after user-repartition
    Sink sink-8 to topic per-minute after counts"""


def test_a_topology_is_cut_at_repartition_topics_and_described() -> None:
    assert clicks_app().topology().describe() == TEXT


def test_a_repartition_topic_takes_the_partition_count_of_its_join() -> None:
    topology = clicks_app().topology()
    counts = topology.partition_counts({"clicks": 4, "users": 2, "named": 1})
    assert counts["clicks-user-repartition"] == 2
    assert topology.changelog_partitions(counts) == {"clicks-1-changelog": 2}
    assert [sub.tasks(counts) for sub in topology.subtopologies] == [4, 2]


def test_a_repartition_topic_s_count_is_declared_or_its_upstream_s() -> None:
    app = App("counted")
    words = app.topic("words", key=str, value=str)
    app.stream(words).group_by(lambda _, v: v, name="a").count(name="as")
    app.stream(words).rekey(lambda _, v: v).repartition(name="b", partitions=7)
    counts = app.topology().partition_counts({"words": 3})
    assert counts["counted-a-repartition"] == 3
    assert counts["counted-b-repartition"] == 7


def merged_app(**narrow: int) -> App:
    app = App("merged")
    few, many = app.topic("few", key=str, value=str), app.topic("many", key=str, value=str)
    narrowed = app.stream(few).repartition(name="narrow", **narrow)
    counted = app.stream(many).group_by(lambda _, v: v, name="by-value").count(name="counts")
    counted.changes().map(lambda k, n: (k, str(n)), name="text").merge(narrowed).to(
        app.topic("all", key=str, value=str)
    )
    return app


@pytest.mark.parametrize("narrow", [{"partitions": 1}, {}])
def test_partition_counts_are_stable_while_topics_are_created(
    narrow: dict[str, int],
) -> None:
    topology = merged_app(**narrow).topology()
    known = {"few": 2, "many": 3, "all": 1}
    counts = topology.partition_counts(known)
    assert counts["merged-by-value-repartition"] == 3
    repartition_topics = [name for name in counts if name.endswith("-repartition")]
    assert len(repartition_topics) == 2
    for name in repartition_topics:
        assert topology.partition_counts({**known, name: counts[name]}) == counts


def test_a_new_repartition_topic_takes_the_count_of_existing_state() -> None:
    known = {"few": 2, "many": 3, "all": 1, "merged-narrow-repartition": 1}
    topology = merged_app().topology()
    (changelog,) = (each.changelog_topic for each in topology.subtopologies if each.changelog_topic)
    counts = topology.partition_counts({**known, changelog: 1})
    assert counts["merged-by-value-repartition"] == 1


def test_joined_topics_must_have_equal_partition_counts() -> None:
    app = App("joined")
    orders = app.topic("orders", key=str, value=str)
    users = app.topic("users", key=str, value=str)
    app.stream(orders).join(app.table(users), lambda o, u: o + u, name="with-user")
    with pytest.raises(TopologyError) as error:
        app.topology().partition_counts({"orders": 4, "users": 2})
    for part in ("'orders'", "'users'", "partitions is 4", "2 in", ".repartition(", "'with-user'"):
        assert part in str(error.value)


def test_a_missing_topic_is_named() -> None:
    with pytest.raises(TopologyError, match="'users'"):
        clicks_app().topology().partition_counts({"clicks": 4})


def test_sources_and_idle_times_are_known_across_repartitions() -> None:
    app = App("chain")
    words = app.topic("words", key=str, value=int)
    first = (
        app.stream(words)
        .group_by(lambda k, _: k, name="a")
        .windowed(tumbling("1m"))
        .idle_after("10s")
        .count(name="small")
    )
    first.changes().map(lambda w, n: (w.key, n), name="b").group_by_key().windowed(
        tumbling("1h")
    ).idle_after("1m").count(name="big")
    subs = app.topology().subtopologies
    feeders = {topic: sub.feeders[topic] for sub in subs for topic in sub.feeders}
    assert [f.name for f in feeders["chain-a-repartition"]] == ["words"]
    assert [f.name for f in feeders["chain-b-repartition"]] == ["small"]
    counts = {"words": 3, "chain-a-repartition": 2, "chain-b-repartition": 2}
    assert feeders["chain-a-repartition"][0].partitions(counts) == 3
    assert feeders["chain-b-repartition"][0].partitions(counts) == 2
    marks = {topic: sub.idle_marks_ms[topic] for sub in subs for topic in sub.idle_marks_ms}
    assert marks == {"chain-a-repartition": (10_000, 60_000), "chain-b-repartition": (60_000,)}


def only_subtopology(app: App) -> Subtopology:
    (sub,) = app.topology().subtopologies
    return sub


def test_merging_paths_process_records_one_by_one() -> None:
    app = App("paths")
    words = app.topic("words", key=str, value=int)
    out = app.topic("out", key=str, value=int)
    stream = app.stream(words)
    stream.filter(lambda _, v: v > 0).to(out)
    assert not only_subtopology(app).record_at_a_time
    stream.filter(lambda _, v: v < 0).to(out)
    assert only_subtopology(app).record_at_a_time


def test_a_join_with_a_stream_s_own_table_processes_records_one_by_one() -> None:
    app = App("self")
    words = app.topic("words", key=str, value=int)
    stream = app.stream(words)
    stream.join(stream.group_by_key().count(name="seen"), lambda v, n: v + n)
    assert only_subtopology(app).record_at_a_time


def test_a_policy_in_words_is_refused_with_the_policies_that_there_are() -> None:
    wrong: Any = "dlq"
    app = App("a", on_error=wrong)
    with pytest.raises(TopologyError, match=r"'dlq', which is no policy: use one of on_error.FAIL"):
        app.stream(app.topic("in", key=str, value=str))
    app = App("b")
    stream = app.stream(app.topic("in", key=str, value=str))
    with pytest.raises(TopologyError, match=r"'dlq', which is no policy"):
        stream.map_values(len, on_error=wrong)


def test_node_names_are_unique_and_valid_in_topic_names() -> None:
    app = App("names")
    words = app.topic("words", key=str, value=int)
    app.stream(words).group_by_key().count(name="seen")
    with pytest.raises(TopologyError, match="'seen' is taken by a Aggregate"):
        app.stream(words).group_by_key().count(name="seen")
    with pytest.raises(TopologyError, match=r"' ', '\?' is not allowed"):
        app.stream(words).group_by_key().count(name="how many?")
    with pytest.raises(TopologyError, match="use 1 to 249"):
        App("")


def test_event_time_without_grace_or_late_warns_once() -> None:
    app = App("warned")
    clicks = app.topic("clicks", key=str, value=Click, timestamp=lambda c: c.at)
    late = app.topic("late", key=str, value=Late[Click])
    grouped = app.stream(clicks).group_by(lambda _, c: c.user, name="by-user")
    grouped.windowed(tumbling("1m")).late(late).count(name="quiet")
    assert app.topology().warnings() == []
    grouped.windowed(tumbling("1m")).count(name="loud")
    with pytest.warns(UserWarning, match="'loud' reads event time from the values of 'clicks'"):
        app.topology()
    app.topology()


def test_a_window_emitted_on_close_feeds_under_its_own_name() -> None:
    app = clicks_app()
    (node,) = [n for n in app.topology().nodes if isinstance(n, WindowedAggregate)]
    assert node.feeds == (node.name,)


def test_branching_and_merging_paths_are_visited_once() -> None:
    app = App("paths")
    stream = app.stream(app.topic("words", key=str, value=str))
    for _ in range(40):
        stream = stream.filter(lambda _, v: bool(v)).merge(stream.filter_not(lambda _, v: bool(v)))
    counts = stream.group_by_key().windowed(tumbling("1m")).count(name="minutes")
    counts.changes().rekey(lambda _, n: n, name="by-count").group_by_key().count(name="twice")
    assert app.program().topology.subtopologies
