"""Mechanisms found by search: numbers of a rule that are good for clients, under which lying does not pay."""
