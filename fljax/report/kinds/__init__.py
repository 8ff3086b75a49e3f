"""Kinds of figure that are drawn when they are asked for, one function each."""
