"""New York's flights of 2013 as a stream: delays per airport and hour, with names."""
