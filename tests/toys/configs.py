"""Texts of tiny configs."""

from __future__ import annotations

DIGITS = 'dataset = "digits"\npartition = "iid"\nclients = 4'
BLOBS = 'dataset = "blobs"\npartition = "iid"\nclients = 4'


def config_text(
    data: str,
    *algorithms: str,
    head: str = "rounds = 1",
    model: str = "logistic_regression",
    batch_size: int = 4,
    steps: int = 2,
    standalone: int | None = None,
    more: str = "",
) -> str:
    """A config in TOML; ``head``, ``data`` and ``more`` are lines, and lines may follow the name of an algorithm."""
    local = f"learning_rate = 0.1\nbatch_size = {batch_size}\nsteps = {steps}"
    tables = [("data", data), ("model", f'name = "{model}"'), ("local", local)]
    if standalone is not None:
        tables.append(("standalone", f"steps = {standalone}"))
    parts = [head, *(f"[{name}]\n{lines}" for name, lines in tables), *([more] if more else [])]
    for each in algorithms or ("fedavg",):
        name, _, options = each.partition("\n")
        parts.append(f'[[algorithms]]\nname = "{name}"' + (f"\n{options}" if options else ""))
    return "\n".join(parts) + "\n"
