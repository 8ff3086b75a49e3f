"""What packages export; names that are imported at first use cost an import of the package nothing."""
# Each name stands once, in an import of ``__init__.py``, where type checkers look for it, too. Those that are imported
# at first use stand in a block ``if TYPE_CHECKING``.

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any


def at_first_use(spec: Any) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of the package with this ``__spec__``."""
    # Lines of its block are ``from module import name as name``.
    package = spec.name

    @functools.cache
    def homes() -> dict[str, tuple[str, str]]:
        """By name: the module that it is imported from, and its name there."""
        import ast

        if not str(spec.origin).endswith(".py"):
            raise ImportError(f"expected the source of {package}, got {spec.origin}")
        # As bytes, since not every loader has get_source: pytest's, for instance.
        blocks = [node for node in ast.parse(spec.loader.get_data(spec.origin)).body if isinstance(node, ast.If)]
        lines = [line for block in blocks for line in block.body if isinstance(line, ast.ImportFrom)]
        return {alias.asname or alias.name: (line.module or "", alias.name) for line in lines for alias in line.names}

    def get(name: str) -> Any:
        if name not in homes():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home, own = homes()[name]
        if home == package:  # a module of the package, which would ask the package again
            return importlib.import_module(f"{package}.{own}")
        return getattr(__import__(home, fromlist=[own]), own)

    def names() -> list[str]:
        return sorted(homes())

    return get, names


def exported(face: Mapping[str, Any]) -> list[str]:
    """``__all__`` of a package that imports at once: constants, classes, then functions, without modules."""
    own = [name for name, value in face.items() if name[0] != "_" and not inspect.ismodule(value)]
    return sorted(own, key=lambda name: (not name.isupper(), name[0].islower(), name))
