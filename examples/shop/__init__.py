"""A shop: an access log and a table of prices, joined, and written to files and to SQL."""
