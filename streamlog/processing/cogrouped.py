"""PortStep: values become pairs of the input's number and themselves; see `topology/cogrouped`."""

from __future__ import annotations

from streamlog.processing.columns import Batch
from streamlog.processing.step import Step
from streamlog.topology import Port


class PortStep(Step):
    """Says of each value which input it came by."""

    def __init__(self, node: Port) -> None:
        super().__init__(node.name)
        self._number = node.number

    def process(self, batch: Batch) -> None:
        """No value stays none: aggregations leave it out."""
        number = self._number
        values = [None if value is None else (number, value) for value in batch.values]
        self.forward(batch.with_values(values))
