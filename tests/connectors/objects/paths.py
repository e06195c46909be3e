"""The path that a template gives a record."""

from __future__ import annotations

from streamlog.connect import Batch, TopicPartition
from streamlog.connectors.objects.file_names import PathTemplate
from streamlog.serdes.erased_types import AnyRecord


def path_of(template: str, record: AnyRecord) -> str:
    place = TopicPartition(record.topic, record.partition)
    return PathTemplate(template).paths_of(Batch(place, [record], next_offset=1))(0)
