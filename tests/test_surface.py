"""The public names, pinned: adding one is a decision, and losing one breaks programs."""

from __future__ import annotations

import doctest
import importlib
import inspect

import pytest

import streamlog
from streamlog import App, Grouped, Snapshot, Stream, Table, Topic, WindowedStream, agg
from streamlog.client.admin import Admin
from streamlog.client.consumer import Consumer
from streamlog.client.producer import Producer
from streamlog.client.producer.transaction_session import Transaction
from streamlog.metrics.build_info import release

NAMES = [
    "AgentRef",
    "Aggregator",
    "App",
    "Context",
    "Dur",
    "Emit",
    "ErrorPolicy",
    "GlobalTable",
    "Grouped",
    "JoinWindow",
    "Late",
    "ProcessingError",
    "Processor",
    "Record",
    "Sent",
    "Serde",
    "Snapshot",
    "Store",
    "Stream",
    "StreamlogError",
    "Table",
    "Timers",
    "Topic",
    "Windowed",
    "WindowedStream",
    "Windows",
    "agg",
    "calendar",
    "count_window",
    "hopping",
    "kv_store",
    "migration",
    "on_error",
    "punctuate",
    "session",
    "sliding",
    "tumbling",
]

METHODS = {
    App: [
        "agent", "agents", "backfill", "command", "commands", "compare", "connectors", "crontab",
        "crontabs", "global_table", "hand_over", "main", "page", "pages", "patterns", "program",
        "simulate", "sink", "source", "spec_of", "stream", "table", "task", "tasks", "test",
        "timer", "timers", "topic", "topic_pattern", "topics", "topology",
    ],
    Snapshot: [
        "entry", "files", "id", "offsets", "open", "progress", "read", "remove", "rows", "url",
        "verify",
    ],
    Topic: ["at", "decoded", "encoded", "name", "send"],
    Stream: [
        "amap_values", "dedupe", "filter", "filter_not", "flat_map", "flat_map_values", "group_by",
        "group_by_key", "items", "join", "left_join", "lookup", "map", "map_values", "merge",
        "outer_join", "peek", "process", "records", "rekey", "repartition", "set_timestamp",
        "sink", "split", "take", "to", "to_table", "with_headers",
    ],
    Grouped: ["agg", "aggregate", "cogroup", "count", "emit", "reduce", "windowed"],
    WindowedStream: ["agg", "aggregate", "count", "emit", "idle_after", "late", "reduce"],
    Table: [
        "changes", "fetch", "filter", "get", "group_by", "items", "join", "join_on", "left_join",
        "left_join_on", "map_values",        "name", "outer_join", "put", "scan", "suppress",
    ],
    Consumer: [
        "assign", "assignment", "begin_offsets", "close", "commit", "commit_soon", "committed",
        "committed_metadata", "end_offsets", "enforce_rebalance", "group_metadata",
        "high_watermark", "is_leader", "is_member", "lag", "metrics", "offset_and_metadata",
        "offsets_for_times", "outdated",
        "partitions", "pause", "paused", "poll", "poll_batches", "poll_columns",
        "position", "positions", "resume", "seek", "seek_to_beginning", "seek_to_end", "staying",
        "subscribe",
        "subscription", "time_marks", "topic_id", "truncated", "unsubscribe", "wakeup", "want_mark",
    ],
    agg: [
        "collect",
        "count",
        "distinct",
        "first",
        "last",
        "max",
        "mean",
        "min",
        "quantile",
        "sum",
        "top",
        "var",
    ],
    Producer: [
        "close", "flush", "metrics", "partition_by", "partitions", "send", "send_batch",
        "transaction",
    ],
    Transaction: ["send_offsets"],
}  # fmt: skip

ADMIN = [
    "abort_transaction", "alter_client_metrics", "alter_client_quotas", "alter_configs",
    "alter_group_offsets", "alter_link", "alter_loggers", "alter_partition_reassignments",
    "alter_replica_log_dirs", "app_logs", "can_publish", "compare_mirror", "create_acls",
    "create_link", "create_partitions", "create_topics", "delete_acls", "delete_client_metrics",
    "delete_group_offsets", "delete_groups", "delete_link", "delete_records", "delete_topics",
    "describe_acls", "describe_api_versions", "describe_client_metrics", "describe_client_quotas",
    "describe_cluster", "describe_configs", "describe_group_lag", "describe_groups",
    "describe_log_dirs", "describe_loggers", "describe_mirrors", "describe_nodes",
    "describe_partitions", "describe_producers", "describe_quorum", "describe_topics",
    "describe_transactions", "divergences", "drop_staged", "elect_leaders", "ends_of",
    "fail_back", "find_hanging_transactions", "find_topics", "group_offsets",
    "group_offsets_and_metadata", "is_streamlog", "leader_epochs", "list_client_metrics",
    "list_config_resources", "list_groups", "list_partition_reassignments", "list_topics",
    "list_transactions", "list_users", "metrics", "pause_mirrors", "possible_losses",
    "promote_app_now", "promote_mirrors", "promote_mirrors_now", "publish", "remove_throttles",
    "remove_user", "resume_mirrors", "set_password", "stage", "stored_batches", "throttle_moves",
    "unseal_topics",
]  # fmt: skip


def test_the_package_exports_the_pinned_names() -> None:
    assert sorted(streamlog.__all__) == NAMES
    assert all(hasattr(streamlog, name) for name in NAMES)


def test_the_version_is_that_of_the_installed_distribution() -> None:
    assert streamlog.__version__ == release()


@pytest.mark.parametrize("kind", METHODS, ids=lambda kind: kind.__name__)
def test_a_class_has_the_pinned_methods(kind: type) -> None:
    public = sorted(name for name in dir(kind) if not name.startswith("_"))
    assert public == METHODS[kind]
    for name in public:
        assert inspect.getdoc(getattr(kind, name)), f"{kind.__name__}.{name} has no docstring"


def test_an_admin_has_the_pinned_methods() -> None:
    assert sorted(name for name in dir(Admin) if not name.startswith("_")) == ADMIN
    for name in ADMIN:
        assert inspect.getdoc(getattr(Admin, name)), f"Admin.{name} has no docstring"


@pytest.mark.parametrize("module", ["streamlog.app", "streamlog.dsl.windowed"])
def test_examples_in_docstrings_run(module: str) -> None:
    failures, tried = doctest.testmod(importlib.import_module(module))
    assert tried
    assert not failures
