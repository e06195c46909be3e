"""Replication: a partition as its leader serves it, and the requests that wait for it."""
