"""Load: clients of our own that use a log in every way, and write down what they were told.

The same in the simulation and against real processes: what a client needs is `room.Log`. A client
goes on until it is told to stop; whatever the log refuses meanwhile it tries again, as users do,
with new producers and consumers.
"""
