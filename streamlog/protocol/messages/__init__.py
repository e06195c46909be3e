"""The declarations, one module for each of Kafka's areas: data, coordination, admin, cluster.

Import the classes from those modules: importing one area does not load the others.
"""
