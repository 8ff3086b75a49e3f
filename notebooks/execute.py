"""Runs the notebooks of this folder from top to bottom; any error fails. Nothing is written back.

``python notebooks/execute.py`` runs all, ``--part K/N`` every Nth of the sorted names, from place K on, counted from 0.
"""

from __future__ import annotations

import argparse
import pathlib
import time

import nbformat
from nbclient import NotebookClient

here = pathlib.Path(__file__).parent
parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--part", default="0/1", metavar="K/N", help="a part of the notebooks, counted from 0")
part, count = map(int, parser.parse_args().part.split("/"))
for path in sorted(here.glob("*.ipynb"))[part::count]:
    began = time.perf_counter()
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(here)}}).execute()
    print(f"{path.name}: {time.perf_counter() - began:.0f} s")
