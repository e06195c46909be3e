"""The language of an app: topics, streams, groups and tables that add nodes to a topology.

Every operator returns a new object and runs nothing. What is typed here is checked by mypy;
what only shows at run time (a missing name, a type that can't be read back) is a
TopologyError where the operator is called. Agents and schedules are declared here too.
"""
