"""Generate: files for the programs around a cluster, such as Prometheus and Grafana.

Rule of the package: pure; the files are printed by `streamlog generate`. Every metric that they
name is one that a broker or worker exposes (`tests/generate` scrapes real ones).
"""
