"""Arguments that builders of algorithms refuse, and runs that are refused before their first round."""

from __future__ import annotations

import functools
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

from fljax.algorithms import (
    Bidding,
    Exploration,
    Tokens,
    afl,
    apfl,
    cgsv,
    ditto,
    fedala,
    fedavg,
    fedavg_finetune,
    fedbabu,
    fedbn,
    fedem,
    fedfomo,
    fednova,
    fedper,
    fedproto,
    fedprox,
    fedrep,
    fedsoft,
    iafl,
    ifca,
    incfl,
    ipfl,
    learnt,
    lg_fedavg,
    mwfed,
    perfedavg,
    pfedme,
    qffl,
    rank,
    scaffold,
    standalone,
    weighted,
)
from fljax.algorithms.measuring import with_contributions
from fljax.contributions import RoundMeasure
from fljax.engine.rounds.states import initial_state
from fljax.models import MODELS
from fljax.protocol import Rows
from fljax.training import Local
from tests.algorithms.rounds_tools import TASK, federation, history, stored
from tests.refusals import refusals, refuses

pytestmark = [pytest.mark.unchecked, pytest.mark.usefixtures("quick_compilation")]

HOW, ADAM = Local(0.1, 2, steps=1), Local(0.1, 2, steps=1, optimizer="adam")
MOMENTUM = HOW._replace(options=(("momentum", 0.9),))
ONES = jnp.ones(5)
BY_SEED = xr.DataArray(np.ones((5, 2)), dims=("client", "seed"))
PLAIN_SGD = "'sgd' without options for"


def of(builder: Any, local: Local = HOW, task: Any = TASK, **options: Any) -> functools.partial[Any]:
    """A call that builds an algorithm."""
    return functools.partial(builder, task, local, **options)


def run(builder: Any, **options: Any) -> functools.partial[Any]:
    """A call that runs an algorithm on five clients."""
    algorithm = of(builder, **options)
    rows = Rows(jnp.asarray((0, 5, 8, 11), jnp.int32), jnp.int32(4))
    data = federation()
    if builder is ipfl and options:
        data = data._replace(held={"validation": rows})
    return functools.partial(history, lambda _: algorithm(), data, 1)


def layers(shared: Any) -> functools.partial[Any]:
    """LG-FedAvg of a network with three dense layers."""
    return of(lg_fedavg, task=MODELS["mlp"]((3,), 4), shared=shared)


def features(**changes: Any) -> Any:
    """A task with features, but for the changes."""
    return TASK._replace(**({"features": lambda params, x: x, "width": 3} | changes))


@refusals(
    (of(afl, updates="loss"), "updates", "gradient or model", "got 'loss'"),
    (of(afl, ADAM), PLAIN_SGD, "afl", "'adam'"),
    (run(afl, clients_per_round=4), "clients_per_round", "all 5 clients for afl", "got 4"),
    (of(apfl, alpha=1.5), "alpha", "from 0 to 1", "got 1.5"),
    (of(apfl, adaptive=1), "adaptive", "got 1"),
    (of(cgsv, alpha=3.0), "alpha", "from 0 to 1", "got 3.0"),
    (of(cgsv, beta=-1.0), "beta", "above 0", "got -1.0"),
    (of(cgsv, length=0.0), "length", "above 0", "got 0.0"),
    (of(ditto, personal_epochs=1, personal_steps=2), "at most one of personal_epochs and personal_steps"),
    (of(ditto, personal_steps=0), "personal_steps", "at least 1 or None", "got 0"),
    (of(ditto, weights="mass"), "weights", "size or uniform", "got 'mass'"),
    (of(fedala, layers=3), "layers", "the 2 parameter tensors", "got 3; they are b, w"),
    (of(fedala, layers=-1), "layers", "at least 0", "got -1"),
    (of(fedala, layers=True), "layers", "whole number", "got True"),
    (of(fedala, sample=1.2), "sample", "from 0 to 1", "got 1.2"),
    (of(fedala, most_epochs=0), "most_epochs", "at least 1", "got 0"),
    (of(fedavg, weights="sizes"), "weights", "size or uniform", "got 'sizes'"),
    (of(fedavg, clients_per_round=0), "clients_per_round", "at least 1 or None", "got 0"),
    (of(fedavg, server_optimizer="adamant"), "the name of an optax optimizer", "'adamant'"),
    (of(fedavg_finetune, tune_epochs=-1), "tune_epochs", "at least 0", "got -1"),
    (of(fedbabu, tune_epochs=-1), "tune_epochs", "at least 0", "got -1"),
    (of(fedbn), "a task with statistics"),
    (of(fedbn, own=("b",), weights="sizes"), "weights", "size or uniform", "got 'sizes'"),
    (of(fedbn, own="tail"), "own to be layers", "or a function", "got 'tail'"),
    (of(fedem, clusters=-1), "clusters", "at least 1", "got -1"),
    (of(fedem, deploy_steps=-1), "deploy_steps", "at least 0", "got -1"),
    (of(fedfomo, models_sent=-1), "models_sent", "at least 0", "got -1"),
    (of(fedfomo, models_sent=2.5), "models_sent", "whole number", "got 2.5"),
    (of(fedfomo, models_sent=True), "models_sent", "whole number", "got True"),
    (of(fednova, HOW._replace(clip_norm=1.0), mu=0.1), "mu = 0 for fednova with clip_norm, got clip_norm 1.0"),
    (of(fednova, MOMENTUM, mu=0.1), "mu = 0 for fednova with local momentum, got momentum 0.9"),
    (of(fedper, tune_epochs=-1), "tune_epochs", "at least 0", "got -1"),
    (of(fedper, weights="mass"), "weights", "size or uniform", "got 'mass'"),
    (of(fedproto, task=TASK._replace(classes=None)), "got one without features, classes, width"),
    (of(fedproto, task=features(width=None)), "got one without width"),
    (of(fedproto, task=features(), weights="size"), "weights", "count or uniform", "got 'size'"),
    (of(fedproto, task=features(), predict="nearest"), "predict", "prototype or head", "got 'nearest'"),
    (of(fedprox, stragglers=2), "stragglers", "from 0 to 1", "got 2"),
    (of(fedrep, head_epochs=1, head_steps=2), "at most one of head_epochs and head_steps"),
    (of(fedrep, head_steps=0), "head_steps", "at least 1 or None", "got 0"),
    (of(fedrep, final_epochs=-1), "final_epochs", "at least 0", "got -1"),
    (of(fedsoft, clusters=True), "clusters", "at least 1", "got True"),
    (of(fedsoft, clients_per_cluster=0), "clients_per_cluster", "at least 1 or None", "got 0"),
    (of(fedsoft, estimate_every=0), "estimate_every", "at least 1", "got 0"),
    (of(fedsoft, smoother=1.5), "smoother", "from 0 to 1", "got 1.5"),
    (of(iafl, contribution=ONES, kappa=1.5), "kappa", "from 0 to 1", "got 1.5"),
    (of(iafl, contribution=ONES, recovery=-0.1), "recovery", "from 0 to 1", "got -0.1"),
    (of(iafl, contribution=ONES, reference_rule="mean"), "reference_rule", "max or median", "got 'mean'"),
    (of(iafl, contribution=ONES, reference_draw="mine"), "reference_draw", "own or copied", "got 'mine'"),
    (of(iafl, contribution=ONES, joining="size"), "joining to be an array", "contribution or None"),
    (of(iafl, contribution=jnp.ones((2, 5)), joining="contribution"), "joining", "got one per round"),
    (of(iafl, contribution=ONES, joining=(0.5, 1.5, 1.0, 0.0)), "joining to be an array of numbers from 0 to 1"),
    (of(iafl, contribution=ONES, ceiling=0.0), "ceiling", "above 0 or max", "got 0.0"),
    (of(iafl, contribution=BY_SEED), "one seed's algorithm", "got seed"),
    (of(iafl, contribution="size"), "one of the measures multi_round", "got 'size'"),
    (of(iafl, contribution="fedce"), "'fedce', which needs what clients measure"),
    (of(iafl, contribution="cosine", joining="contribution"), "joining", "got a measure of rounds"),
    (of(iafl, contribution="shapfed"), "a task with classes and a head for 'shapfed'"),
    (of(iafl, contribution=RoundMeasure(memory=1.5)), "memory", "from 0 to 1"),
    (of(iafl, contribution=RoundMeasure("cffl_reputation", judged_by="loss")), "an accuracy, from", "loss"),
    (of(iafl, contribution=RoundMeasure(options={"power": 2})), "power"),
    (of(iafl, task=TASK._replace(score=None), contribution="fed_shapley"), "a task with a score for 'fed_shapley'"),
    (run(iafl, contribution=jnp.ones(3)), "contribution", "each of 5 clients", "got shape (3,)"),
    (run(iafl, contribution=ONES, joining=jnp.ones(3)), "joining", "each of 5 clients", "got shape (3,)"),
    (run(iafl, contribution="fed_shapley"), "got 'validation'; valid names are none; held_fraction"),
    (of(ifca, clusters=0), "clusters", "at least 1", "got 0"),
    (of(ifca, averaging="models"), "averaging", "model or gradient", "got 'models'"),
    (of(ifca, weights="sizes"), "weights", "uniform or size", "got 'sizes'"),
    (of(ifca, ADAM, averaging="gradient"), PLAIN_SGD, "averaging gradients"),
    (of(incfl, threshold=0.0, gap_scale=0), "gap_scale", "above 0", "got 0"),
    (of(incfl, threshold=0.0, normalise="maen"), "normalise", "sum or mean", "got 'maen'"),
    (of(incfl, threshold=0.0, surrogate="sigmoidal"), "surrogate", "sigmoid, ", "got 'sigmoidal'"),
    (of(learnt, theta=[1.0] * 35), "theta of 36 numbers for hidden = 4", "got 35"),
    (of(learnt, task=TASK._replace(score=None)), "a task with a score for learnt"),
    (of(lg_fedavg, shared=2.5), "a whole number of at least 0, a list of names or a function", "got 2.5"),
    (of(lg_fedavg, shared=True), "a list of names or a function", "got True"),
    (of(lg_fedavg, shared=[1]), "a list of names or a function", "got [1]"),
    (of(lg_fedavg, shared=None), "a list of names or a function", "got None"),
    (layers(3), "shared below 3", "got 3, which leaves nothing to the clients"),
    (layers(4), "shared", "the 3 dense layers", "got 4"),
    (layers(["layer4"]), "shared to name parameters", "got 'layer4'; valid names are"),
    (of(mwfed, ADAM, threshold=1.0, mode="pooled"), PLAIN_SGD),
    (of(mwfed, threshold=1.0, mode="global"), "mode", "local or pooled", "got 'global'"),
    (of(mwfed, threshold=1.0, most=0), "most", "at least 1", "got 0"),
    (of(perfedavg, alpha="beta"), "alpha", "of at least 0 or local", "got 'beta'"),
    (of(perfedavg, hessian="half"), "hessian", "none, exact or difference", "got 'half'"),
    (of(perfedavg, adaptation_steps=-1), "adaptation_steps", "at least 0", "got -1"),
    (of(pfedme, ADAM), PLAIN_SGD, "pfedme"),
    (of(pfedme, HOW._replace(clip_norm=1.0)), "without clip_norm and decay_of for pfedme, whose steps are its own"),
    (of(pfedme, HOW._replace(decay_of="weights")), "without clip_norm and decay_of for pfedme"),
    (of(pfedme, personal_steps=0), "personal_steps", "at least 1", "got 0"),
    (run(rank), "rank_on to name rows that the server has", "got 'validation'"),
    (of(scaffold, ADAM), PLAIN_SGD, "scaffold", "got 'adam'"),
    (of(scaffold, option="III"), "option", "I or II", "got 'III'"),
    (of(scaffold, weights="count"), "weights", "size or uniform", "got 'count'"),
    (of(weighted, clip=0.0), "clip", "above 0 or None", "got 0.0"),
    (lambda: with_contributions(fedavg(TASK, HOW)), "keeps single updates of clients", "stacked = True"),
    (lambda: with_contributions(standalone(TASK, HOW)), "an algorithm with a global model", "got one without"),
    (lambda: with_contributions(qffl(TASK, HOW), "cosin"), "did you mean 'cosine'?"),
)
def test_what_is_refused(call: Any, words: list[str]) -> None:
    refuses(call, words)


@pytest.mark.thorough
@refusals(
    (of(ipfl, clusters=0), "clusters", "at least 1", "got 0"),
    (of(ipfl, bidding=Bidding("all")), "bidding.rule", "threshold, argmax or random", "'all'"),  # pyright: ignore
    (of(ipfl, bidding=Bidding(fill_empty=None)), "bidding.fill_empty", "or always", "got None"),  # pyright: ignore
    (of(ipfl, importance_split="train"), "importance_split", "valid or test", "got 'train'"),
    (of(ipfl, importance="loss"), "importance", "accuracy, least_loss or argmax", "got 'loss'"),
    (of(ipfl, exploration=Exploration(random_slots=9)), "exploration.random_slots", "from 0 to 5", "got 9"),
    (of(ipfl, exploration=Exploration(1.5)), "exploration.initial", "from 0 to 1", "got 1.5"),
    (of(ipfl, clients_per_cluster=0), "clients_per_cluster", "at least 1", "got 0"),
    (of(ipfl, tokens=Tokens(ranked=None)), "tokens.ranked", "members or all", "got None"),  # pyright: ignore
    (of(ipfl, tokens=Tokens(price=-1)), "tokens.price", "above 0", "got -1"),
    (of(ipfl, tokens=Tokens(price=1.5)), "a whole number for tokens.price", "got 1.5"),
    (of(ipfl, tokens=Tokens(-5.0)), "tokens.initial", "at least 0", "got -5.0"),
    (of(ipfl, tokens=Tokens(price=[1, 2, 3])), "tokens.price", "each of 2 clusters", "3"),
    (of(ipfl, tokens=Tokens(price=[1, 0])), "tokens.price", "above 0", "got [1, 0]"),
    (of(ipfl, tokens=Tokens([5.0, 0.5])), "a whole number for tokens.initial", "got 0.5"),
    (of(ipfl, tokens=Tokens(0.5)), "a whole number for tokens.initial", "got 0.5"),
    (run(ipfl), "valid names are none; held_fraction above 0 keeps some for validation"),
    (run(ipfl, profile_on="distributions"), "without the rows 'distribution_0'; valid names are val"),
)
def test_what_ipfl_refuses(call: Any, words: list[str]) -> None:
    refuses(call, words)


def test_what_is_taken_beside_it() -> None:
    initial_state(afl(TASK, HOW, clients_per_round=5), stored(federation()), jnp.uint32(0))
    layers(2)()
    ipfl(TASK, HOW, tokens=Tokens(0.5, price=1.5, whole=False))
    assert fedavg_finetune(TASK, HOW, tune_epochs=0).personal is None
