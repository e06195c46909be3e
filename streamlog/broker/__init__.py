"""The broker: a log of topics behind the Kafka protocol.

From the socket to the file: `server` and `embedded` take requests, `broker` dispatches them,
`data`, `admin` and `coordinator` decide, `replication` says what may be acknowledged and
read, `storage` keeps it. Nothing here knows about streams.
"""
