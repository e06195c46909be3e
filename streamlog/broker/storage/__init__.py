"""What the broker keeps on disk.

`log_directory` holds topics, `partition_log` one partition, `segment` one file of it with
its `index`es; `scan` walks batches and judges them, `producers` remembers who wrote what,
`files` is the only module that touches the operating system. Synchronous throughout.
"""
