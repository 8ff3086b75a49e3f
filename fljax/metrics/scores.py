"""Scores of a task, such as AUROC and F1: scikit-learn computes them on the host from labels and predictions.

Ranks are taken of log-odds, since probabilities of two rows of which the model is sure round to the same 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float

from fljax.core.errors import in_words, place_of
from fljax.core.names import name_of, resolve, shown
from fljax.core.values import as_number, kind_of

Wants = Literal["log_odds", "classes", "rare", "matrix", "probabilities"]


class Score(NamedTuple):
    """A number of some test rows.

    Attributes:
      name: in the names of results; a word of letters, digits and underscores.
      compute: ``(labels [n], predictions) -> float`` on the host, with NumPy's arrays.
      lower: whether lower is better.
      wants: the predictions: "probabilities" ``[n, classes]`` (of a task without classes: the model's outputs as they
        are); "log_odds" ``[n, classes]`` of each class against all others; "classes" ``[n]``; "rare": labels and
        predictions are bools ``[n]`` that say whether the class is the rare one; "matrix": the logits, for a matrix.
      sentence: the definition.
    """

    name: str
    compute: Callable[[Any, Any], Any]
    lower: bool = False
    wants: Wants = "probabilities"
    sentence: str = "a function of one's own"

    @property
    def is_own(self) -> bool:
        """Whether the user gave the function; it takes rows of one class, too, and tasks without classes."""
        return self.wants == "probabilities"


# The value of a quotient 0 / 0; Any, since scikit-learn's own annotation knows its texts alone.
_ZERO: Any = 0


def _ranked(name: str) -> Callable[[Any, Any], float]:
    """A function of scikit-learn for two classes, averaged over the classes that the rows have."""

    def compute(labels: np.ndarray, log_odds: np.ndarray) -> float:
        import sklearn.metrics

        function = getattr(sklearn.metrics, name)
        if log_odds.shape[1] == 2:
            return float(function(labels == 1, log_odds[:, 1]))
        return float(np.mean([function(labels == which, log_odds[:, which]) for which in np.unique(labels)]))

    return compute


def _f1(labels: np.ndarray, predicted: np.ndarray) -> float:
    from sklearn import metrics

    return float(metrics.f1_score(labels, predicted, average="macro", zero_division=_ZERO))


def _f1_rare(labels: np.ndarray, predicted: np.ndarray) -> float:
    from sklearn import metrics

    return float(metrics.f1_score(labels, predicted, zero_division=_ZERO))


def _balanced_accuracy(labels: np.ndarray, predicted: np.ndarray) -> float:
    from sklearn.metrics import recall_score  # as balanced_accuracy_score, which warns of classes that no row has

    return float(recall_score(labels, predicted, labels=np.unique(labels), average="macro", zero_division=_ZERO))


def _confusion(labels: np.ndarray, logits: np.ndarray) -> np.ndarray:
    """``[C, C]``: the number of rows by class and by predicted class; NaN if a logit is not finite."""
    count, label = logits.shape[-1], labels.ravel().astype(int)
    pairs = label * count + np.argmax(logits, axis=-1).ravel()
    counts = np.bincount(pairs[(label >= 0) & (label < count)], minlength=count**2).reshape(count, count)
    return np.where(np.isfinite(logits).all(), counts, np.nan).astype(np.float32)


SCORES: Mapping[str, Score] = {
    score.name: score
    for score in (
        Score(
            "auroc",
            _ranked("roc_auc_score"),
            wants="log_odds",
            sentence="area under the ROC curve; of several classes the mean over those of the rows, each against all",
        ),
        Score(
            "average_precision",
            _ranked("average_precision_score"),
            wants="log_odds",
            sentence="average precision; of several classes the mean over those of the rows, each against the rest",
        ),
        Score("f1", _f1, wants="classes", sentence="F1, the mean over classes (macro)"),
        Score(
            "f1_rare",
            _f1_rare,
            wants="rare",
            sentence="F1 of the rare class: that with the fewest test rows of all clients, of equal ones the last",
        ),
        Score(
            "balanced_accuracy",
            _balanced_accuracy,
            wants="classes",
            sentence="mean over classes of the share of their rows that are recognised",
        ),
        Score("confusion", _confusion, wants="matrix", sentence="number of test rows by class and by predicted class"),
    )
}

_STARTS = ("average_score_", "pooled_score_")
Asked = str | Score | Callable[..., Any]


def scores_of(asked: Sequence[Asked], *, imports: bool = True) -> tuple[Score, ...]:
    """Scores by name (of ``SCORES``, or ``"module:object"``), as functions of one's own, or as they are."""
    if isinstance(asked, str) or callable(asked) or not isinstance(asked, Sequence):
        raise ValueError(f"expected a list of scores, got {shown(asked)}")
    chosen = tuple(_score(entry, imports) for entry in asked)
    names = [score.name for score in chosen]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"expected scores of different names, got {name!r} twice")
    return chosen


def _score(asked: Asked, imports: bool) -> Score:
    value: Any = resolve(asked, SCORES, "score", imports=imports) if isinstance(asked, str) else asked
    if isinstance(value, Score):
        named = value
    elif callable(value):
        named = Score(name_of(value), value)
    else:
        raise ValueError(
            f"expected a score to be a function (labels, probabilities) -> float, or a name, got {shown(asked)}"
        )
    if not named.name.isidentifier() or not callable(named.compute):
        raise ValueError(
            f"expected a score with a function and a name of letters, digits and underscores, got {shown(named.name)}"
        )
    return named


class Predicted(NamedTuple):
    """What models predict on n test rows of N clients, of which the first ``size`` are real and the others padding."""

    outputs: Any  # [N, n, C] logits, or [N, n, ...] of a task without classes; of JAX in a program, of NumPy for scores
    labels: Any
    size: Any
    counts: Any  # whether metrics count the client


def rare_class(predicted: Sequence[Predicted]) -> int | None:
    """The class with the fewest real rows (at least one), of equal ones the last; None without rows."""
    real = [part.labels[np.arange(part.labels.shape[-1]) < part.size[..., None]] for part in predicted]
    classes, counts = np.unique(np.concatenate(real), return_counts=True)
    return int(classes[len(counts) - 1 - np.argmin(counts[::-1])]) if len(classes) else None


def value_of(score: Score, labels: np.ndarray, outputs: np.ndarray, rare: int | None = None) -> float:
    """A score of some rows; NaN without rows or finite outputs, and of one class alone (if not one's own)."""
    if not len(labels) or not np.isfinite(outputs).all():
        return float("nan")
    if score.is_own:
        return _called(score, labels, outputs)
    if score.wants == "log_odds":
        predictions = log_odds(outputs)
    else:
        predictions = np.argmax(outputs, axis=-1)
        if score.wants == "rare":
            labels, predictions = labels == rare, predictions == rare
    return float("nan") if np.all(labels == labels[0]) else _called(score, labels, predictions)


class NoValue(ValueError):
    """A score of one's own raised an exception, or returned no number; ``got`` says which."""

    def __init__(self, score: str, rows: str, got: str) -> None:
        super().__init__(f"expected the score {score!r} to return a number for {rows}, got {got}")
        self.got = got


def _called(score: Score, labels: np.ndarray, outputs: np.ndarray) -> float:
    try:
        found = score.compute(np.array(labels), np.array(outputs))  # its own, as it may sort them
    except Exception as error:  # a user's function may raise anything
        raise NoValue(score.name, f"{len(labels)} rows", f"{in_words(error)} ({place_of(error)})") from error
    number = as_number(found)
    if number is None:
        raise NoValue(score.name, f"{len(labels)} rows", kind_of(found))
    return number


def log_odds(logits: Float[np.ndarray, "n C"]) -> Float[np.ndarray, "n C"]:
    """``log(p / (1 - p))`` of every class in double precision: its logit minus the logsumexp of the others."""
    logits = np.asarray(logits, np.float64)
    others = np.stack([np.delete(logits, which, axis=1) for which in range(logits.shape[1])], axis=1)
    return logits - np.logaddexp.reduce(others, axis=-1)


def probabilities(logits: Float[np.ndarray, "*n C"]) -> Float[np.ndarray, "*n C"]:
    """The softmax of logits in double precision."""
    logits = np.asarray(logits, np.float64)
    exponentials = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def scores_of_clients(
    scores: Sequence[Score],
    predicted: Predicted,
    rare: int | None = None,
    classes: bool = True,
    failed: Callable[[str, int | None, str], Any] = lambda score, client, got: None,
) -> dict[str, Any]:
    """All scores of some clients: ``score_NAME`` ``[N]``, ``average_score_NAME`` and ``pooled_score_NAME``."""
    # ``failed`` takes a score's name, a client's position (None: all rows) and what a user's function did; NaN stands.
    real = [slice(0, int(size) if counts else 0) for size, counts in zip(predicted.size, predicted.counts, strict=True)]
    labels = [predicted.labels[client, rows] for client, rows in enumerate(real)]
    outputs = [predicted.outputs[client, rows] for client, rows in enumerate(real)]
    of_all = np.concatenate(labels), np.concatenate(outputs)
    values_by_name: dict[str, Any] = {}
    for score in scores:
        if score.wants == "matrix":  # of no rows zeros
            values_by_name[f"score_{score.name}"] = np.stack(list(map(score.compute, labels, outputs)))
            continue

        def judged(client: int | None, labels: np.ndarray, outputs: np.ndarray, score: Score = score) -> float:
            if score.is_own and classes and len(labels) and np.isfinite(outputs).all():
                outputs = probabilities(outputs)
            try:
                return value_of(score, labels, outputs, rare)
            except NoValue as error:
                failed(score.name, client, error.got)
                return float("nan")

        values = np.array([judged(client, *rows) for client, rows in enumerate(zip(labels, outputs, strict=True))])
        known = values[np.isfinite(values)]
        values_by_name[f"score_{score.name}"] = values
        values_by_name[f"average_score_{score.name}"] = float(known.mean()) if len(known) else float("nan")
        values_by_name[f"pooled_score_{score.name}"] = judged(None, *of_all)
    return values_by_name


def sentences_of(scores: Sequence[Score]) -> dict[str, str]:
    """What each variable of results is, by its name."""
    told: dict[str, str] = {}
    for score in scores:
        if score.wants == "matrix":
            told[f"score_{score.name}"] = f"per client: {score.sentence}"
            continue
        better = "lower" if score.lower else "higher"
        told[f"score_{score.name}"] = f"per client: {score.sentence} ({better} is better), on its test rows"
        told[f"average_score_{score.name}"] = f"mean over clients of score_{score.name}"
        told[f"pooled_score_{score.name}"] = f"as score_{score.name}, on the test rows of all clients together"
    return told


def scalars_of(scores: Sequence[Score]) -> tuple[str, ...]:
    """The names of the scalars in results, those of unseen clients last."""
    numbers = [score for score in scores if score.wants != "matrix"]
    names = [f"{start}_score_{score.name}" for score in numbers for start in ("average", "pooled")]
    return (*names, *(f"unseen_{name}" for name in names))


def score_name(variable: str) -> str | None:
    """The name of the score in that of a scalar, ``average_score_NAME`` or ``pooled_score_NAME``; None: it is none."""
    plain = variable.removeprefix("unseen_")
    return next((plain.removeprefix(start) for start in _STARTS if plain.startswith(start)), None)


def heading_of(variable: str) -> str | None:
    """A short heading of a scalar in tables, such as ``auroc pooled``; None: it is no score."""
    name = score_name(variable)
    if name is None:
        return None
    whose = " unseen" if variable.startswith("unseen_") else ""
    return f"{name} {'pooled' if 'pooled_score_' in variable else 'average'}{whose}"
