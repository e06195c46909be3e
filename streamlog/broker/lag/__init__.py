"""Lag: how far every group is behind its partitions, in records and in time.

`group_lag` is what lag means, without I/O. `lag_rounds` computes it for the groups that this broker
coordinates; `next_records` finds the records that they read next, in this broker's logs, and
`leader_questions` at the leaders of partitions that have no replica here. `lag_metrics` and
`lag_requests` show it.
"""
