"""Connect tasks: connectors at work, over ports for the log, the clock and the error policy.

A reader drives the generator of one part of a source (`part_reader`), and a `SinkRunner` the calls
of one sink task (`sink_task`). Worker, service and test driver run this code; they know the log.
"""
