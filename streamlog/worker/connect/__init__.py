"""Connect in the worker: slots of the group, offsets in its transactions, and groups of sinks."""
