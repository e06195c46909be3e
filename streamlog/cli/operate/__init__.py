"""Operate: advice about a log, plans for its replicas, and a canary."""
