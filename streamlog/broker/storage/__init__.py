"""The broker's storage: partition logs in data directories.

`log_directory` holds the topics of one data directory, `log.partition_log` one partition, and
`log.segment` one file of it with its indexes. `log.scan` walks batches and checks them, and
`log.producer_states` keeps what idempotent producers have written. Only `disk.files` and the
modules behind it call the operating system. All calls are synchronous.
"""
