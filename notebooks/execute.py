"""Runs every notebook of this folder from top to bottom; any error fails. Used by CI; nothing is written back."""

from __future__ import annotations

import pathlib
import time

import nbformat
from nbclient import NotebookClient

here = pathlib.Path(__file__).parent
for path in sorted(here.glob("*.ipynb")):
    began = time.perf_counter()
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(here)}}).execute()
    print(f"{path.name}: {time.perf_counter() - began:.0f} s")
