"""Certificates as labelled arrays and on the disk."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest

from fljax import games
from tests.games.played import GAINS, unilateral


def assert_equal(left: Any, right: Any, name: str = "") -> None:
    if isinstance(left, np.ndarray):
        np.testing.assert_array_equal(left, right, err_msg=name)
    elif hasattr(left, "_asdict"):
        for field, value in left._asdict().items():
            assert_equal(value, getattr(right, field), field)
    else:
        np.testing.assert_equal(left, right, err_msg=name)


@pytest.fixture(scope="module")
def certificates() -> dict[str, games.Certificate]:
    table = unilateral(GAINS)
    payoffs = table.payoffs.copy()
    payoffs[1, 2] = np.nan
    return {
        "a/b µ": games.certificate(table._replace(payoffs=payoffs), tolerance=0.05)._replace(
            left_out=(("flip", "which never reads labels"), ("b", "which never reads size"))
        ),
        "other": games.certificate(
            unilateral(GAINS, outside=None), tolerance=0.01, confidence=0.9, method="hoeffding", span=(-1, 1)
        ),
    }


def test_labelled_certificates(certificates: dict[str, games.Certificate]) -> None:
    for entry in certificates.values():
        assert_equal(games.certificate_of(games.certificate_dataset(entry)), entry)
    dataset = games.certificate_dataset(certificates["a/b µ"])
    assert (dataset["deviator"].values.tolist(), dataset["deviation"].values.tolist()) == ([0, 1, 2], ["lie"] * 3)
    np.testing.assert_allclose(dataset["gain"].sel(seed=2), GAINS[2], atol=1e-15)
    np.testing.assert_allclose(dataset["surplus"], 0.5 + 0.06 + 0.01 * np.arange(3) - 0.4)
    assert (float(dataset["irrational"]), int(dataset["diverged"].sum())) == (0, 1)
    assert "irrational" not in games.certificate_dataset(certificates["other"])
    with pytest.raises(ValueError, match="expected a certificate, got a dataset without payoff, tolerance"):
        games.certificate_of(dataset.drop_vars(["payoff", "tolerance"]))


def test_older_certificates_and_names(certificates: dict[str, games.Certificate]) -> None:
    """In an older file the mechanism with one member is outside, and clients have their ids alone."""
    first = certificates["a/b µ"]
    older = games.certificate_dataset(first).drop_vars(["outside_is", "name"])
    assert games.certificate_of(older).gains.outside_is == "mechanism"
    named = first._replace(gains=first.gains._replace(names=("Ann", "Bo", "0"), outside_is="standalone"))
    assert_equal(games.certificate_of(games.certificate_dataset(named)), named)
    assert "worst client Ann: lie" in repr(named)


def test_certificates_on_the_disk(certificates: dict[str, games.Certificate], tmp_path: pathlib.Path) -> None:
    path = tmp_path / "certificates.nc"
    games.save_certificates(path, certificates, 'name = "x"')
    saved = games.load_certificates(path)
    assert list(saved.certificates) == list(certificates)
    for label, entry in certificates.items():
        assert_equal(saved.certificates[label], entry)
    assert saved.config == 'name = "x"'
    with pytest.raises(ValueError, match=r"expected a file with tables of coalitions, got .*, which has none"):
        games.load(path)
    games.save(tmp_path / "worth.nc", {})
    with pytest.raises(ValueError, match=r"expected a file with certificates, got .*, which has none"):
        games.load_certificates(tmp_path / "worth.nc")
