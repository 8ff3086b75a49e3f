"""A federation from a table with a column of labels, a column of clients, and columns of numbers and words."""

from __future__ import annotations

import math
import numbers
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fljax.core.names import check_same_labels, did_you_mean, shown, unknown, with_article
from fljax.data.arrays import Labels, as_array, as_text, check_known, is_missing, number_labels, plain_labels, text_of
from fljax.data.datasets import (
    PARTS,
    Dataset,
    Piece,
    TokenKeywords,
    assemble,
    centred,
    check_owners,
    dataset,
    stored_standardised,
)
from fljax.data.federation import federate
from fljax.data.own.words import as_numbers, one_hot, words_of
from fljax.protocol import Features, Federation

# The number of columns that an error message names.
_NAMED = 10


class TableOptions(NamedTuple):
    """What the columns of a table are, and how its files are read. ``table`` and ``table_folder`` show these lines.

    Attributes:
      label: the column to predict; see ``from_frame`` for labels that are not 0..C-1. Several columns are several
        targets.
      client: the column that says whose row it is.
      features: the columns of the features; all other columns that have a name if not given. Words become one-hot.
      part: the column with "train", "valid" or "test"; None: rows are split by fractions, or test rows have files.
      classes: number of classes, if some class has no row.
      regression: true makes numbers to predict of whole numbers; false makes classes of floats.
      shape: the shape of one example, e.g. ``[28, 28, 1]`` for 784 columns of pixels.
      vocabulary: number of different tokens, where the features are tokens.
      standardise: whether models see each feature with mean 0 and standard deviation 1, on the training rows of the
        clients that train, and columns of words as 0 and 1. A missing number is then the mean, and refused otherwise.
      encoding: of the text of CSV files, e.g. ``"latin-1"``, ``"utf-16"`` or ``"gbk"``.
      separator: the character between the cells of CSV files, e.g. ``";"``, or ``"\\t"`` for a tab.
      decimal: the character before the decimals of numbers in CSV files, e.g. ``","``.
      test_file: the file of test rows, relative to the folder of ``path``, with the same columns in any order. If it
        has the column of clients, too, clients are tested on their own test rows. Test rows of nobody who trains are
        the global test part. None: rows are split.
      images: the column with paths of image files, which are then the features: uint8 ``[n, height, width, channels]``.
        Other columns are not used.
      image_folder: where these paths begin, relative to the folder of their table; that folder if not given.
      size: height and width to which images are resized; without it all must have one size.
    """

    label: str | Sequence[str]
    client: str | None = None
    features: Sequence[str] | None = None
    part: str | None = None
    classes: int | None = None
    regression: bool | None = None
    shape: Sequence[int] | None = None
    vocabulary: int | None = None
    standardise: bool = True
    encoding: str = "utf-8"
    separator: str = ","
    decimal: str = "."
    test_file: str | None = None
    images: str | None = None
    image_folder: str | None = None
    size: Sequence[int] | None = None


class FolderKeywords(TokenKeywords, total=False):
    """The options of ``table_folder`` beside ``label``, for type checkers."""

    features: Sequence[str] | None
    part: str | None
    shape: Sequence[int] | None
    encoding: str
    separator: str
    decimal: str
    images: str | None
    image_folder: str | None
    size: Sequence[int] | None


class TableKeywords(FolderKeywords, total=False):
    """The options of ``table`` beside ``label``, for type checkers."""

    client: str | None
    test_file: str | None


class RowsOfFiles(NamedTuple):
    """Part and owner of each row of a table that was joined from several files, as the files say them."""

    test: np.ndarray
    owner: Any  # a pandas Series, None for rows without an owner; None: no row has one


def from_frame(
    frame: Any,
    *,
    label: str | Sequence[str],
    client: str | None = None,
    features: Sequence[str] | None = None,
    part: str | None = None,
    classes: int | None = None,
    regression: bool | None = None,
    shape: Sequence[int] | None = None,
    vocabulary: int | None = None,
    standardise: bool = False,
    **options: Any,
) -> Federation:
    """Makes a federation from a table: a pandas DataFrame, or anything that has columns by name.

    ::

        federation = data.from_frame(frame, label="diagnosis", client="hospital", train_fraction=0.8)
        federation.names.classes, federation.names.clients  # the labels and the hospitals, in fljax's order

    Args:
      frame: one row for each example. Polars and Arrow tables, and dictionaries of arrays, work too.
      label: the column to predict: text, categories, bools or whole numbers are classes, and floats are numbers to
        predict. Labels that are not 0..C-1 are numbered in ascending order (categories in their own order) and kept as
        ``names.classes``. A list of columns with numbers gives several targets for each row.
      client: the column with the client of each row. Every value becomes a client, in ascending order, and is kept in
        ``names.clients``. None: ``partition`` and ``clients`` say how rows are divided.
      features: the columns of the features, in this order; all other columns if not given. Numbers and bools become
        float32. Text and categories become a column of 0 and 1 for each word (in ascending order, or the categories
        in their own), and a last one for missing words ("?" and "NA", too) and for all others. All clients declare
        words, as they declare classes, but no row of ``part``'s "valid" and "test" does. With ``shape`` or
        ``vocabulary`` all columns have numbers.
      part: the column with the part of each row: "train", "valid" or "test". None: rows are split by ``train_fraction``
        and ``valid_fraction``.
      classes: number of classes, if some class has no row; whole numbers are then kept as they are.
      regression: True makes numbers to predict of whole numbers; False makes classes of floats.
      shape: the shape of one example, e.g. ``[28, 28, 1]`` for 784 columns of pixels, which are then stored as uint8
        if they are whole numbers in 0..255.
      vocabulary: number of different tokens, if the features are tokens.
      standardise: whether each feature is shifted and scaled to mean 0 and standard deviation 1 on the training rows of
        the clients that train, and a missing number is their mean (in a run of some members, the members' mean); 0 if
        they have none. Columns of words stay 0 and 1. Predictions take raw rows: words, the shift and the scale are
        kept as ``features``. False: missing numbers are refused.
      **options: as for ``federate``: ``partition``, ``clients``, ``unseen``, ``train_fraction``, ``seed``, ...

    Raises:
      ValueError: if a column does not exist, labels, clients, parts or numbers (without ``standardise``) are missing,
        a column of features has dates, more than 1000 words or more than 20 rows of different words, and as for
        ``federate``.
    """
    partition = options.pop("partition", None)
    if partition is None and client is None:
        raise ValueError(
            "expected client, the column of the clients, or partition and clients, e.g. partition='iid', clients=10, "
            "got neither"
        )
    given = TableOptions(label, client, features, part, classes, regression, shape, vocabulary, standardise)
    made = read_columns(frame, given)
    return stored_standardised(federate(made, "natural" if partition is None else partition, **options))


def dataset_from_frame(
    frame: Any,
    *,
    label: str | Sequence[str],
    client: str | None = None,
    features: Sequence[str] | None = None,
    part: str | None = None,
    classes: int | None = None,
    regression: bool | None = None,
    shape: Sequence[int] | None = None,
    vocabulary: int | None = None,
    standardise: bool = False,
) -> Dataset:
    """As ``from_frame``, but the Dataset: for federations of several seeds that share its rows, ``federations``.

    With ``standardise``, each federation has the moments of the training rows of its own clients that train, and every
    model sees standardised features. Without it, models see them as they are.

    Raises:
      ValueError: as for ``from_frame``.
    """
    given = TableOptions(label, client, features, part, classes, regression, shape, vocabulary, standardise)
    return read_columns(frame, given)


def read_columns(
    frame: Any, options: TableOptions, *, pixels: np.ndarray | None = None, rows: RowsOfFiles | None = None
) -> Dataset:
    """As ``dataset_from_frame``, with the ``pixels`` of a column of images; ``rows`` replace options.client."""
    options = TableOptions(*map(_named, TableOptions._fields, options))
    table = as_frame(frame)
    apart = named_columns(options)
    for column in apart:
        if rows is None or column != options.client:
            check_column(table, column)
    others = [name for name in table.columns if name not in apart]
    chosen = others if options.features is None else list(options.features)
    twice = [name for name in chosen if name in apart]
    if twice:
        raise ValueError(f"expected features without the columns of label, client and part, got {shown(twice[0])}")
    if not len(table) or not (chosen or options.images):
        raise ValueError(
            f"expected a table with at least one row and one column of features, got {len(table)} rows and the columns "
            f"{_listed(list(table.columns))}"
        )
    plain = options.shape is None and options.vocabulary is None and pixels is None
    options = options._replace(standardise=plain and options.standardise)
    which = None if options.part is None else _which(table[options.part], options.part)
    test = rows.test if rows is not None else np.zeros(len(table), bool) if which is None else which > 0
    x, words = _features(table, chosen, options, ~test if plain else None) if pixels is None else (pixels, None)
    x, shift = centred(x) if options.standardise else (x, None)
    x = _narrow(x) if plain else x
    labels = _labels(table, options, test)
    if rows is not None and rows.test.any():
        made = _with_test_rows(x, labels, rows, options)
    else:
        whose = rows.owner if rows is not None else None if options.client is None else table[options.client]
        made = _of_columns(x, labels, None if whose is None else _numbered(whose, options.client), which, options)
    if not plain:
        return made
    return made._replace(features=Features(tuple(chosen), shift, words=words), standardise=options.standardise)


def label_columns(label: Any) -> list[Any]:
    """The columns of labels, of which there may be several."""
    return [label] if isinstance(label, str) or not isinstance(label, Iterable) else list(label)


def named_columns(options: TableOptions) -> list[Any]:
    """The columns that are no features by their meaning: labels, clients, parts, paths of images."""
    others = (options.client, options.part, options.images)
    return [*label_columns(options.label), *(name for name in others if name is not None)]


def _of_columns(
    x: np.ndarray,
    labels: Labels,
    owners: tuple[np.ndarray, tuple[Any, ...]] | None,
    which: np.ndarray | None,
    options: TableOptions,
) -> Dataset:
    """The data set of rows whose part and owner are said by columns."""
    owner, names = (None, None) if owners is None else owners
    size = None
    if which is not None and owner is None:
        # Without clients the author's test rows are one global test set, which upstream's data sets have at the end.
        order = np.argsort(which == 2, kind="stable")
        size = int(np.sum(which != 2))
        if np.any(which == 1):
            raise ValueError(
                f"expected only 'train' and 'test' in {options.part!r} without a column of clients, got 'valid'"
            )
        x, labels, which = x[order], labels._replace(y=labels.y[order]), None
    how: dict[str, Any] = {"vocabulary": options.vocabulary, "standardise": options.standardise}
    made = dataset(x, labels.y, owner=owner, classes=labels.classes, train_size=size, **how)
    return made._replace(part=which, class_names=labels.names, owner_names=names)


def _with_test_rows(x: np.ndarray, labels: Labels, rows: RowsOfFiles, options: TableOptions) -> Dataset:
    """The data set of rows of which some are test rows by their file."""

    def piece(chosen: np.ndarray, test: bool) -> Piece:
        whose = None if rows.owner is None else rows.owner[chosen].tolist()
        whose = None if whose is None or all(owner is None for owner in whose) else whose
        name = "test rows" if test else "rows"
        return Piece(x[chosen], labels.y[chosen], whose, test, name, missing=options.standardise)

    pieces = [piece(~rows.test, False), piece(rows.test, True)]
    check_owners(pieces)
    made = assemble(pieces, classes=labels.classes, vocabulary=options.vocabulary, standardise=False)
    return made._replace(class_names=labels.names)


def as_frame(frame: Any) -> Any:
    """A table as a pandas DataFrame whose columns have different names, each of one level and no bytes."""
    import pandas

    if isinstance(frame, pandas.DataFrame):
        levels, names = frame.columns.nlevels, [text_of(name) for name in frame.columns.get_level_values(0)]
        if levels > 1:
            raise ValueError(
                f"expected columns with names of one level, got {levels} levels, e.g. {shown(frame.columns[0])}; "
                "frame.columns = ['_'.join(map(str, name)).strip('_') for name in frame.columns] joins them"
            )
        texts = Counter(map(str, names))
        if len(texts) < len(names):
            raise ValueError(f"expected different names of columns, got {texts.most_common(1)[0][0]!r} twice")
        return frame if names == list(frame.columns) else frame.set_axis(names, axis=1)
    if isinstance(frame, Mapping):
        names: Iterable[Any] = frame.keys()
        check_same_labels(0, {str(name): column for name, column in frame.items()})
    else:
        names = getattr(frame, "column_names", None) or getattr(frame, "columns", None)  # type: ignore[assignment]
        if names is None or isinstance(frame, str):
            raise ValueError(f"expected a table with columns, such as a pandas DataFrame, got {shown(frame)}")
    columns = {name: as_array(f"the column {name!r}", frame[name]) for name in names}
    flat = {name: list(values) if values.ndim > 1 else values for name, values in columns.items()}
    lengths = {name: len(values) for name, values in flat.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"expected columns of equal lengths, got {lengths}")
    try:
        return as_frame(pandas.DataFrame(flat))
    except UnicodeEncodeError as error:
        raise ValueError(f"expected text without NUL and surrogates in a table, got {error.object!r}") from None


def _named(option: str, chosen: Any) -> Any:
    """An option of ``TableOptions``: names of columns with bytes as text, and a text as features as one column."""
    if option in ("label", "client", "part") and hasattr(chosen, "__array__") and np.ndim(chosen):
        raise ValueError(f"expected {option} to be the name of a column, got {with_article(type(chosen).__name__)}")
    several = isinstance(chosen, list) or (option == "features" and chosen is not None)
    return list(map(text_of, label_columns(text_of(chosen)))) if several else text_of(chosen)


def check_column(table: Any, column: Any) -> None:
    """Raises a ValueError if a table has no such column."""
    if column in table.columns:
        return
    names = [str(name) for name in table.columns]
    question = did_you_mean(str(column), names)
    question += "; frame.reset_index() makes columns of the index" if column in table.index.names else ""
    raise ValueError(f"expected a column of the table ({_listed(names)}), got {shown(column)}{question}")


def _listed(names: Sequence[Any]) -> str:
    first = ", ".join(str(name) for name in names[:_NAMED])
    more = len(names) - _NAMED
    return f"{first} and {more} more" if more > 0 else first


def _features(
    table: Any, chosen: Sequence[Any], options: TableOptions, trains: np.ndarray | None
) -> tuple[np.ndarray, tuple[Any, ...] | None]:
    """The numbers of the features, NaN where one is missing, and ``Features.words``."""
    import pandas

    # ``trains``: rows that may train; None for tokens and pixels, which have a number in each cell.
    known = set(table.columns)
    for column in chosen:
        if column not in known:
            check_column(table, column)
    part = table[list(chosen)]
    words = tuple(
        None if trains is None or dtype.kind in "biuf" else words_of(column, table[column], trains)
        for column, dtype in zip(chosen, part.dtypes, strict=True)
    )
    x = part.to_numpy()
    lacking = (x != x if x.dtype.kind == "f" else part.isna().to_numpy()).any(axis=0)
    for column, dtype, lacks, some in zip(chosen, part.dtypes, lacking, words, strict=True):
        if some is None and not options.standardise and (lacks or dtype.kind == "O"):
            cells = table[column] if trains is None else pandas.Series(as_numbers(table[column]))
            check_complete(cells, column, trains is not None)
        if trains is None and dtype.kind not in "biuf":
            cells = table[column].astype(object)
            place = int(np.argmax([not isinstance(cell, numbers.Real) for cell in cells]))
            raise ValueError(
                f"expected numbers in the columns of pixels or tokens, got {shown(cells.iloc[place])} in row {place}, "
                f"counted from 0, of {column!r}; choose columns with features=, or make numbers of it"
            )
    if x.dtype == object:  # words, bools beside numbers, or nullable numbers
        columns = [(table[column], some) for column, some in zip(chosen, words, strict=True)]
        x = np.column_stack([as_numbers(cells) if some is None else one_hot(cells, some) for cells, some in columns])
    whole = x.dtype.kind in "iu"
    if options.shape is not None:
        lengths = tuple(options.shape)
        if math.prod(lengths) != x.shape[1] or min(lengths, default=0) < 1:
            raise ValueError(f"expected a shape of {x.shape[1]} entries, the columns of features, got {list(lengths)}")
        x = x.reshape(len(x), *lengths)
        x = x.astype(np.uint8) if whole and x.min() >= 0 and x.max() <= 255 else _narrow(x)
    return x, None if all(some is None for some in words) else words


def _narrow(x: np.ndarray) -> np.ndarray:
    """Features as float32; numbers beyond its range stay, for the check of the data set."""
    with np.errstate(over="ignore"):
        narrow = x.astype(np.float32)
    return x.astype(np.float64) if np.isinf(narrow).any() else narrow


def _labels(table: Any, options: TableOptions, test: np.ndarray) -> Labels:
    names, classes, regression = label_columns(options.label), options.classes, options.regression
    for name in names:
        check_complete(table[name], name)
        if test.any():
            check_known(plain_labels(_plain(table[name])), test, regression)
    if len(names) > 1:
        columns = [table[name].to_numpy() for name in names]
        if any(values.dtype.kind not in "biuf" for values in columns):
            raise ValueError(f"expected numbers in several columns of labels, got others in {names}")
        return number_labels(np.stack(columns, axis=1), regression=True)
    column = table[names[0]]
    if hasattr(column, "cat") and not regression:
        used = column.cat.remove_unused_categories()
        codes = used.cat.codes.to_numpy().astype(np.int32)
        names = used.cat.categories.tolist()
        labels = number_labels(codes, classes=len(names) if classes is None else classes)
        return labels._replace(names=tuple(names))
    return number_labels(_plain(column), classes=classes, regression=regression)


def _plain(column: Any) -> np.ndarray:
    """A column without missing values as an array of NumPy's own kinds, or of objects."""
    values = column.to_numpy()
    return np.asarray(values.tolist()) if values.dtype == object and column.dtype.kind in "biuf" else values


def _numbered(column: Any, name: str | None) -> tuple[np.ndarray, tuple[Any, ...]]:
    """The number of each row's client, and the clients' names in ascending order."""
    check_complete(column, name)
    try:
        names, numbers = np.unique(as_text(_plain(column)), return_inverse=True)
    except TypeError:
        raise ValueError(f"expected clients of one kind, text or numbers, in {name!r}, got several kinds") from None
    return numbers.reshape(-1).astype(np.int32), tuple(names.tolist())


def _which(column: Any, name: str) -> np.ndarray:
    check_complete(column, name)
    values = [str(text_of(value)) for value in column.tolist()]
    for value in dict.fromkeys(values):
        if value.lower() not in PARTS:
            raise ValueError(f"{unknown('part', value, ('train', 'valid', 'test'))} in the column {name!r}")
    return np.array([PARTS[value.lower()] for value in values], np.int8)


def check_complete(column: Any, name: Any, fillable: bool = False) -> None:
    """Raises a ValueError if a column has no value in some rows, which ``standardise`` would fill if ``fillable``."""
    missing = int(column.isna().sum())
    if not missing and column.dtype == object:
        missing = sum(is_missing(value) for value in column.tolist())
    if missing:
        row = int(np.argmax(column.isna().to_numpy()))
        raise ValueError(
            f"expected a value in each row of the column {name!r}, got none (NaN) in {missing} of {len(column)} rows, "
            f"first in row {row}, counted from 0" + "; standardise = true puts the mean there" * fillable
        )
