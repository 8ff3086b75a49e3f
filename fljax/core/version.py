"""The version of fljax."""

__version__ = "0.2.0"
