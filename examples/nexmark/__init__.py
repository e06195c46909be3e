"""Nexmark: an auction house as a stream, and the queries that stream processors are compared by.

After Tucker, Tufte, Papadimos and Maier, "NEXMark: a benchmark for queries over data streams"
(2002), with the queries as they are told for Apache Beam and Flink.
"""
