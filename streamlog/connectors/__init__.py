"""Connectors: sources and sinks for the systems around a log.

Each connector is a room of its own, imports the ports of `streamlog.connect` and no other
connector, and loads its libraries only when it is used.
"""
