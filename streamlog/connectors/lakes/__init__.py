"""Lakes: topics as tables of Delta Lake and Apache Iceberg, exactly once.

Both formats replace a version of a table by the next one in a single step, and both can keep the
next offsets of a topic in that step. `lake_sink_task` has what follows from that for either;
`delta` and `iceberg` know the formats, and `lake_columns` how a table's columns follow the rows.
"""
