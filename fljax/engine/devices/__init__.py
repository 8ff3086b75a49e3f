"""Devices: what they are, what they hold, and how clients are computed on them."""
