"""What a user is told whose own code fails: which algorithm, where, what."""

from __future__ import annotations

import textwrap
import traceback

import jax
import numpy as np
import pytest

from fljax import AlgorithmError, cli
from fljax import config as configuration
from fljax.cli import printing
from fljax.experiments import run as experiment
from tests.toys.configs import config_text

CONFIG = config_text(
    'dataset = "blobs"\npartition = "iid"\nclients = 3',
    "fedavg",
    '{module}:{builder}\nlabel = "mine"',
    steps=1,
    standalone=1,
)

OWN = """
import jax
import jax.numpy as jnp
from fljax.algorithms import fedavg; from fljax.protocol import PerClient

def in_builder(task, local):
    return {}["nope"]

def in_train(task, local):
    inner = fedavg(task, local, clients_per_round=None)

    def train(key, seat, down, client, data):
        return inner.train(key, seat, down["missing"], client, data)

    return inner._replace(train=train)

def in_training(task, local):
    inner = fedavg(task, local, clients_per_round=None)

    def train(key, seat, down, client, data):
        assert float(seat.round) == 0  # a number, not a tracer
        if seat.id == 2:
            raise KeyError("nope")
        print("client", int(seat.id))
        return inner.train(key, seat, down, client, data)

    return inner._replace(train=train)

def gives_nan(task, local):
    inner = fedavg(task, local, clients_per_round=None)

    def train(key, seat, down, client, data):
        up, client = inner.train(key, seat, down, client, data)
        scale = jnp.log(jnp.where(seat.id == 1, -1.0, 1.0))
        return up._replace(update=jax.tree.map(lambda leaf: leaf * scale, up.update)), client

    return inner._replace(train=train)

def takes_values(task, local):
    inner = fedavg(task, local, clients_per_round=None)

    def init_server(key, census):
        return PerClient(jnp.zeros(census.train.shape[0])), inner.init_server(key, census)

    def send(server, seat):
        return server[0].values, inner.send(server[1], seat)

    return inner._replace(init_server=init_server, send=send)

def with_advice(task, local):
    raise RuntimeError("first line\\nsecond line\\n\\nmore advice")

def refused(task, local, steps=0):
    return fedavg(task, local, clients_per_round=-1)
"""


@pytest.fixture
def run(tmp_path, monkeypatch, capsys, request):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FLJAX_TRACEBACK", raising=False)
    module = f"own_{abs(hash(request.node.name))}"
    (tmp_path / f"{module}.py").write_text(textwrap.dedent(OWN))

    def call(builder: str, *more: str) -> tuple[object, str]:
        (tmp_path / "tiny.toml").write_text(CONFIG.format(module=module, builder=builder))
        with pytest.raises(SystemExit) as stopped:
            cli.main(["run", "tiny.toml", "--quiet", *more])
        return stopped.value.code, capsys.readouterr().err.replace(module, "own")

    return call


AGAIN = "(run with FLJAX_TRACEBACK=1 for the traceback)"


def test_an_error_in_a_builder(run):
    code, words = run("in_builder")
    assert (code, words) == (1, f"fljax: mine: the builder raised KeyError: 'nope' (own.py:7) {AGAIN}\n")


def test_too_little_memory_is_one_sentence(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FLJAX_TRACEBACK", raising=False)
    text = CONFIG.format(module="own", builder="rows").replace("own:rows", "fedavg")
    (tmp_path / "tiny.toml").write_text(text.replace('dataset = "blobs"', 'dataset = "x.npy"'))
    np.save(tmp_path / "x.npy", np.zeros((4, 2)))
    np.save(tmp_path / "y.npy", np.zeros(4, int))

    def load(*_, **__):
        raise MemoryError("Unable to allocate 7.11 PiB")

    monkeypatch.setattr(np, "load", load)
    with pytest.raises(SystemExit, match="1"):
        cli.main(["data", "show", "tiny.toml"])
    words = capsys.readouterr().err
    assert words.startswith("fljax: expected more memory than there is (")
    assert words.count("\n") == 1


def test_an_error_while_a_client_trains(run):
    code, words = run("in_train")
    assert code == 1
    assert words.startswith("fljax: mine: train raised ")
    assert words.endswith(f" (own.py:13) {AGAIN}\n")
    assert words.count("\n") == 1


@pytest.mark.thorough
@pytest.mark.parametrize(
    "how", [pytest.param("execution.clients=debug", marks=pytest.mark.thorough), "execution=debug"]
)
def test_debug_mode_names_the_client(run, how):
    code, words = run("in_training", "--set", how)
    sentence = "mine: train of client 2 (round 0, seed 0) raised KeyError: 'nope' (own.py:23)"
    assert (code, words) == (1, f"fljax: {sentence} {AGAIN}\n")


def test_without_debug_mode_a_tracer_is_named(run):
    code, words = run("in_training")
    assert code == 1
    assert words.startswith("fljax: mine: train raised ConcretizationTypeError: ")
    assert words.endswith(f" (own.py:21) {AGAIN}\n")


@pytest.mark.thorough
def test_jax_debug_nans_names_the_client(run):
    jax.config.update("jax_debug_nans", True)
    try:
        code, words = run("gives_nan")
    finally:
        jax.config.update("jax_debug_nans", False)
    sentence = "train of client 1 (round 0, seed 0) raised FloatingPointError: invalid value (nan) encountered in log"
    assert (code, words) == (1, f"fljax: mine: {sentence} (own.py:34) {AGAIN}\n")


def test_rows_of_one_client_have_no_values(run):
    code, words = run("takes_values")
    assert code == 1
    assert "send raised AttributeError" in words
    assert "; in send, a PerClient of the Server is the client's own row, without .values (own.py:46)" in words


def test_long_advice_is_left_to_the_traceback(run):
    code, words = run("with_advice")
    assert code == 1
    assert words == (f"fljax: mine: the builder raised RuntimeError: first line second line (own.py:51) {AGAIN}\n")


def test_bad_input_is_still_bad_input(run):
    code, words = run("refused")
    assert code == 2
    assert words.startswith(
        "fljax: mine: expected clients_per_round to be a whole number of at least 1 or None, got -1"
    )


def test_the_error_and_its_traceback_stay_in_python(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_in_python.py").write_text(OWN)
    (tmp_path / "tiny.toml").write_text(CONFIG.format(module="own_in_python", builder="in_builder"))
    config = configuration.load(tmp_path / "tiny.toml")
    with pytest.raises(
        AlgorithmError, match=r"^mine: the builder raised KeyError: 'nope' \(own_in_python.py:7\)$"
    ) as caught:
        experiment.run(config)
    cause = caught.value.__cause__
    assert isinstance(cause, KeyError)
    assert cause.args == ("nope",)
    assert traceback.extract_tb(cause.__traceback__)[-1].name == "in_builder"


def test_without_an_algorithm_or_code_of_the_user():
    assert printing.in_words(TypeError("a\nb")) == "TypeError: a b"
    with pytest.raises(Exception) as caught:  # noqa: PT011
        [][0]
    assert printing.in_words(caught.value).startswith("failed in test_without_an_algorithm_or_code_of_the_user (")
