"""All names of fljax, and what its code says of each: for ``fljax list``, ``fljax show`` and the documentation."""

from fljax.cli.catalogue.descriptions import Description, describe
from fljax.cli.catalogue.facts import of_algorithm
from fljax.cli.catalogue.names import KINDS, entries, line
from fljax.cli.catalogue.wording import Parameter, parameters, type_in_words, written

__all__ = [
    "KINDS",
    "Description",
    "Parameter",
    "describe",
    "entries",
    "line",
    "of_algorithm",
    "parameters",
    "type_in_words",
    "written",
]
