"""Scripts for contributors: what a change has to test, and the figures of the tree."""
