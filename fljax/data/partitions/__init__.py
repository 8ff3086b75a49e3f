"""Partitioners, and how the rows of a client become training, validation and test rows."""
