"""Suites that others wrote for brokers of their own, run at ours.

None of them is in this repository: each is fetched when it is run, into `.conformance/` or the
user's cache. A test that is left out has its reason in the suite's `.left_out` file; one that
passes nevertheless, or that the suite no longer has, is a fault of that file.
"""
