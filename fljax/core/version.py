"""The version of fljax."""

__version__ = "0.3.0"
