"""Measurements of speed and memory, and of numbers in papers; ``python benchmarks/run.py`` lists them."""
