"""A config or Python values become results: set up, run, sweep, compare, open again."""
