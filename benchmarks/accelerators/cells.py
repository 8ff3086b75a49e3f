"""What ``accelerator.py`` measures: a fixed list of cells, in the order of their value. Numbers only; no JAX."""

from __future__ import annotations

from typing import Any, NamedTuple

from benchmarks.peers.workloads import WORKLOADS, Workload


class Cell(NamedTuple):
    """One row of the results."""

    part: int  # 1 to 6
    group: str  # the process that measures it; cells of one group share a process
    name: str  # unique within its part
    options: dict[str, Any]  # what the process needs to know

    @property
    def key(self) -> str:
        """Its name in the file of results."""
        return f"{self.part}/{self.name}"


class Group(NamedTuple):
    """A process with a time limit."""

    part: int  # whose cells it measures
    script: str  # in ``device_parts``
    seconds: float  # the limit
    flags: str = ""  # added to ``XLA_FLAGS``
    beside: bool = False  # whether it computes on the CPU while other groups measure the device
    after: tuple[str, ...] = ()  # groups that end before it begins


GROUPS = {
    "device": Group(1, "machine.py", 20),
    "right": Group(2, "right.py", 60),
    "forms": Group(3, "forms.py", 70),
    "forms of ResNet18": Group(3, "forms.py", 50),
    "loops": Group(4, "forms.py", 15),
    "loops in command buffers": Group(4, "forms.py", 15, "--xla_gpu_enable_command_buffer=+WHILE"),
    "answers": Group(5, "answers.py", 60, beside=True),
    "rounds": Group(5, "rounds.py", 70, after=("answers",)),
    "rounds of torch": Group(5, "torch_rounds.py", 40, after=("answers",)),
    "trace": Group(6, "trace.py", 20),
}
PARTS = {
    1: "the device",
    2: "right",
    3: "forms",
    4: "loops",
    5: "throughput",
    6: "a trace",
}
# Of convolutions, the likely fastest first: compiling a grouped convolution of ResNet18 can take minutes.
FORMS = ("tiles", "patches", "grouped")
ALGORITHMS = ("fedavg", "scaffold", "incfl", "iafl", "ipfl", "fedfomo")
PRECISIONS = ("highest", "default")
# Clients on a machine without an accelerator, where the script is only tried.
SMALL = {1: 1, 10: 2, 100: 4, 1000: 8}
# Workloads of part 5 by name: the one that it comes from, and its clients if they are others.
ROUNDS: dict[str, tuple[str, int | None]] = {
    "W5": ("W5", None),
    "W2 of 100": ("W2", 100),
    "W1a": ("W1a", None),
    "W3": ("W3", None),
    "W5 of 10,000": ("W5", 10_000),
    "W1b": ("W1b", None),
    "W2 of 10": ("W2", None),
    "W4": ("W4", None),
}
# Workloads whose first round is compared with float64; 10,000 clients would take minutes.
ANSWERED = tuple(name for name in ROUNDS if name != "W5 of 10,000")
# Workloads of part 5 that decide about layouts, so that a quarter of the clients is measured early.
FIRST = tuple(ROUNDS)[:4]
# Rounds of a timed call: about half a second if a third of the floor is reached.
COUNTS = {"W1a": 100, "W2 of 100": 20, "W5": 20, "W3": 400, "W1b": 200, "W2 of 10": 50, "W5 of 10,000": 3, "W4": 4}


def workload(name: str, small: bool = False) -> Workload:
    """A workload of part 5; a small one has few clients, rows and steps."""
    source, cohort = ROUNDS[name]
    work = WORKLOADS[source]
    if cohort is not None:
        work = work._replace(cohort=cohort, clients=max(cohort, work.clients))
    if not small:
        return work
    cohort = 2 if source == "W4" else min(work.cohort, 8)
    if source == "W4":
        work = work._replace(shape=(8, 8, 3), batch=4)
    samples = 2 * work.batch
    clients = cohort if work.clients == work.cohort else cohort + 2
    return work._replace(
        clients=clients, cohort=cohort, samples=samples, distinct=min(work.distinct, clients * samples)
    )


def _form(model: str, clients: int, convolution: str = "", pooling: str = "", chunk: int = 0) -> Cell:
    """A local step of some clients, all of them side by side or ``chunk`` at a time."""
    given = {"convolution": convolution, "pooling": pooling, "chunk": chunk}
    words = (convolution, pooling, f"{chunk} at a time" if chunk else "")
    form = ", ".join(word for word in words if word) or "plain"
    group = "forms of ResNet18" if model == "resnet18" else "forms"
    options = {
        "model": model,
        "clients": clients,
        "form": form,
        **{name: value for name, value in given.items() if value},
    }
    return Cell(3, group, f"{model}, {clients:,} clients, {form}", options)


def _drawing(form: str) -> Cell:
    options = {"model": "drawing", "clients": 1000, "form": form}
    return Cell(3, "forms", f"drawing, 1,000 clients, {form}", options)


def _forms() -> list[Cell]:
    def convolutions(model: str, clients: int) -> list[Cell]:
        return [_form(model, clients, form) for form in FORMS]

    return [
        *convolutions("lenet", 100),
        _form("mlp", 100),
        _form("lenet", 1000, "tiles"),
        _form("mlp", 1000),
        _form("lenet", 100, "tiles", pooling="windows"),
        _form("lenet", 100, "tiles", chunk=10),
        _form("logistic", 100),
        _form("logistic", 1000),
        _form("lenet", 10, "tiles"),
        *convolutions("resnet18", 10),
        _form("lenet", 1000, "patches"),
        _form("lenet", 1000, "grouped"),
        _form("lenet", 1000, "tiles", chunk=100),
        _form("mlp", 1000, chunk=100),
        *convolutions("lenet", 10)[1:],
        _form("mlp", 10),
        _form("logistic", 10),
        *convolutions("lenet", 1),
        _form("mlp", 1),
        _form("logistic", 1),
        _drawing("permutation"),
        _drawing("without replacement"),
        *convolutions("resnet18", 1),
        _form("resnet18", 100, "grouped", chunk=10),
        _form("resnet18", 100, "tiles", chunk=10),
        *convolutions("resnet18", 100),
    ]


def _loops() -> list[Cell]:
    return [
        Cell(4, group, f"{model}, {form}{ending}", {"model": model, "clients": 100, "loop": form})
        for group, ending in (("loops", ""), ("loops in command buffers", ", command buffers"))
        for model in ("mlp", "logistic")
        for form in ("scan", "unrolled by 2", "unrolled by 5", "unrolled whole", "counted while")
    ]


def _rounds() -> list[Cell]:
    def cell(name: str, who: str, group: str = "rounds", **options: Any) -> Cell:
        return Cell(5, group, f"{name}, {who}", {"workload": name, "who": who, **options})

    cells = [Cell(5, "answers", f"{name}, the data", {"workload": name, "answer": name in ANSWERED}) for name in ROUNDS]
    both = lambda name: [cell(name, "fljax", clients="auto"), cell(name, "JAX by hand")]  # noqa: E731
    for name in FIRST:
        cells += both(name)
    for name in ("W3", "W1a", "W2 of 100"):
        cells.append(cell(name, "fljax, highest", clients="auto", precision="highest"))
    cells += [cell(name, "fljax, a quarter", clients="a quarter") for name in FIRST]
    for name in tuple(ROUNDS)[len(FIRST) :]:
        cells += both(name)
    cells += [cell(name, "JAX by hand, highest", precision="highest") for name in ("W3", "W1a", "W2 of 100")]
    cells += [cell(name, "fljax, a sixteenth", clients="a sixteenth") for name in ("W5", "W2 of 100", "W1a")]
    cells += [cell("W5 of 10,000", f"fljax, {part}", clients=part) for part in ("a quarter", "a sixteenth")]
    cells += [cell("W4", f"fljax, {part}", clients=part) for part in ("a quarter", "all")]
    torch = "rounds of torch"
    cells += [cell(name, "torch vmap", torch) for name in ("W2 of 100", "W5")]
    for name in ("W5", "W2 of 100", "W1a", "W3", "W5 of 10,000", "W1b", "W2 of 10"):  # torch.func has no W4 here
        cells.append(cell(name, "torch vmap, compiled", torch))
    cells += [cell(name, "torch vmap", torch) for name in ("W1a", "W3")]
    # A loop of 20,000 steps and more would take all the time.
    cells += [cell(name, "torch loop", torch) for name in ("W1b", "W2 of 10", "W4", "W3", "W2 of 100", "W1a")]
    return cells


CELLS: tuple[Cell, ...] = (
    *(
        Cell(1, "device", name, {"kind": name})
        for name in (
            "memory",
            "copy",
            "product, default",
            "empty step of a scan",
            "empty step of a while",
            "empty program",
            "product, highest",
            "product, bfloat16",
        )
    ),
    *(
        Cell(2, "right", f"{name}, {precision}", {"algorithm": name, "precision": precision})
        for precision in PRECISIONS
        for name in ALGORITHMS
    ),
    *(
        Cell(2, "right", name, {"task": name})
        for name in ("standalone", "sweep of 64", "gradient through a rollout", "examples on the host")
    ),
    *_forms(),
    *_loops(),
    *_rounds(),
    Cell(6, "trace", "W2 of 100", {"workload": "W2 of 100"}),
    Cell(6, "trace", "W5", {"workload": "W5"}),
)
