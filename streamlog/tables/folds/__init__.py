"""Rows of an aggregation, and how values fold into them."""
