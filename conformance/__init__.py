"""Clients that others wrote, tried on streamlog's broker and on librdkafka's mock cluster.

`python -m conformance` (`make conformance`) starts both, sends each client through each feature and
prints who passes; the tables are kept in `docs/compatibility.md`. A feature is one program, written
once against the small face of `client.py`; each library has a module that puts it behind that
face. `witness.py` looks at the log without any of them.
"""
