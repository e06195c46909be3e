"""Steps that keep tables: aggregations, suppression, tables that the program writes."""
