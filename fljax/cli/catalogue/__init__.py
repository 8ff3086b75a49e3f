"""All names of fljax, and what its code says of each: for ``fljax list``, ``fljax show`` and the documentation."""

from fljax.cli.catalogue.docstrings import Parameter, changed_fields, parameters, type_in_words, written
from fljax.cli.catalogue.facts import of_algorithm
from fljax.cli.catalogue.names import KINDS, Description, describe, entries, line

__all__ = [
    "KINDS",
    "Description",
    "Parameter",
    "changed_fields",
    "describe",
    "entries",
    "line",
    "of_algorithm",
    "parameters",
    "type_in_words",
    "written",
]
