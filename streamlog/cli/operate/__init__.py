"""Operate: advice about a log, plans for replicas, a canary, files for Prometheus and Grafana."""
