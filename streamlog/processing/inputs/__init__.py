"""What a task reads: record queues, the merge of repartitioned sources, and the end of an input."""
