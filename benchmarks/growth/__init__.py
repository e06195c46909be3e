"""Growth curves: what a unit of work costs where there is ten times as much of something.

`make bench-growth` measures each curve, draws it as `docs/images/growth-NAME.svg`, and names its
bends: the points from which a unit of work costs more than a third more than at the point before.
Costs are CPU times of the broker or the worker, which other programs on the machine change little.
"""
