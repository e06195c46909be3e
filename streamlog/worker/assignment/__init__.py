"""Which worker runs which task: the assignor, the plan of a rebalance, the members' data."""
