"""Metrics of a broker's schema registry: what it holds, how far it has read, what it answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from streamlog.metrics.registry import Kind, Metric, Registry, number

if TYPE_CHECKING:
    from streamlog.registry.registry_service import RegistryService

PARTS: Final = frozenset({"subjects", "schemas", "config", "mode", "compatibility", "contexts"})
METHODS: Final = frozenset({"GET", "POST", "PUT", "DELETE"})
OTHER: Final = "other"


class RegistryMetrics:
    """Counts answers, and describes the state of a registry."""

    def __init__(self, registry: Registry, service: RegistryService) -> None:
        self._service = service
        self._requests = registry.counters(
            "streamlog_schema_registry_requests_total",
            "Answers of the schema registry, by method, first part of the path, and HTTP status.",
            "method",
            "path",
            "status",
        )
        self._times = registry.histogram(
            "streamlog_schema_registry_request_seconds",
            "Time of a request to the schema registry, from its head to its answer.",
        )
        registry.collect(self._state)

    def on_answer(self, method: str, path: str, status: int, took_ms: float) -> None:
        """Count an answer."""
        # Only known words become labels: a client could make a series of each path otherwise.
        part = path.strip("/").partition("/")[0]
        self._requests.series(
            method if method in METHODS else OTHER,
            part if part in PARTS else OTHER,
            str(status),
        ).add(1)
        self._times.record(took_ms / 1000)

    def _state(self) -> Iterator[Metric]:
        topic = self._service.topic
        state = topic.state
        yield number(
            "streamlog_schema_registry_is_primary",
            "Whether this broker decides on writes of the schema registry (1), or passes them on.",
            int(self._service.is_primary),
        )
        yield number(
            "streamlog_schema_registry_schemas",
            "Schemas with an id, in all contexts.",
            sum(len(each.contents) for each in state.contexts.values()),
        )
        yield number(
            "streamlog_schema_registry_subjects",
            "Subjects, also deleted ones.",
            state.subject_count,
        )
        yield number(
            "streamlog_schema_registry_replay_offset",
            "The offset up to which this broker has read _schemas.",
            topic.position,
        )
        yield number(
            "streamlog_schema_registry_skipped_records_total",
            "Records of _schemas that no registry could have written, and that were skipped.",
            state.unreadable,
            kind=Kind.COUNTER,
        )
