"""The broker: a log of topics behind the Kafka protocol.

From the socket to the file: `server` takes requests, `broker` dispatches them, `apis`,
`coordinator` and `quorum` decide, `replication` says what may be acknowledged and read, `storage`
keeps it. Nothing here knows about streams.
"""
