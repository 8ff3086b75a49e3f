"""Compiled programs of rounds and evaluations, and what they are called with."""
