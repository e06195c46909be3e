"""The task engine: records in, an Outbox out, with no consumer, producer, clock or loop.

A runner (worker, test driver, history) makes a `Task` per sub-topology and partition and then

    task = Task(subtopology, TaskId(0, 3), store=store, partitions=counts)
    task.positions                     # of a stateful task: the offsets to read from
    outbox = task.process(records, now_ms, ends=ends)   # also without records, for idle sources
    ...                                # send outbox.sinks and wait until they are acknowledged
    changes = task.checkpoint()        # one atomic batch for the changelog ([] if stateless)
    task.committed(changes, next_offset=...)            # the changelog has it: store it

The order of a commit is the rule of the room: sinks, changelog, store. A crash between two of
these repeats sink records and nothing else; `provenance` says how downstream tasks notice that.
"""
