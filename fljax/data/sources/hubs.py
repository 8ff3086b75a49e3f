"""Data sets by name of Hugging Face and of TensorFlow Datasets (TFDS), and upstream's files, downloaded and cached.

TFDS is read without TensorFlow where it can be. Its builders need TensorFlow for most of upstream's files, and its
download manager does not, so addresses and checksums are those of TFDS. If one archive serves several data sets or
options, it is cached itself. Errors of the cache give a warning, and a run goes on without it.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import io
import os
import re
import shutil
import sys
import tempfile
import threading
import urllib.error
import urllib.request
import warnings
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import IO, Any, NamedTuple, Unpack

import numpy as np

from fljax.core.keywords import shows
from fljax.core.names import shown, unknown
from fljax.data.arrays import with_home
from fljax.data.datasets import Dataset, LabelKeywords, Piece, assemble, dataset, with_moments

# Typed loosely, since NumPy's stub treats every keyword as an option of savez.
_save: Callable[..., None] = np.savez


class Source(NamedTuple):
    """A data set whose upstream files are parsed once: the cache has its arrays in one file, ``<name>.npz``."""

    name: str
    parse: Callable[[Path], Dataset]  # of a folder with upstream's files
    advice: str  # how to get these files; the end of an error message
    classes: int | None = None  # None: a number of the cached file
    saved: tuple[str, ...] = ()  # numbers of the Dataset in the cached file beside ``train_size``
    builder: str | None = None  # name of the data set in TFDS, if different
    only: tuple[str, ...] | None = None  # upstream's names of the needed files; None: all
    fetched: bool = True  # whether they may be downloaded; then data of a user's folder are not cached
    folders: tuple[str, ...] = ()  # in which a package of the system may have the files
    pattern: str = "*"  # of the name of one of these files

    def load(self, folder: str | Path | None, cache: str | Path | None) -> Dataset:
        """The data set, read from ``folder`` if given; otherwise from the cache, a package's folder, or a download."""
        return with_moments(self._load(folder, cache_folder(cache)))

    def _load(self, folder: str | Path | None, store: Path) -> Dataset:
        if folder is not None:
            made = self.parse(Path(folder).expanduser())
            if not self.fetched:
                self._write(made, store)
            return made
        arrays = read_cached(self.name, store)
        if arrays is not None and {"x", "y", "train_size", *self.saved} <= arrays.keys():
            numbers: dict[str, Any] = {name: int(arrays[name]) for name in ("train_size", *self.saved)}
            return dataset(arrays["x"], arrays["y"], **{"classes": self.classes, **numbers})
        if not self.fetched:
            raise ValueError(f"expected {self.name} on this machine, got nothing; {self.advice}")
        installed = self._installed()
        if installed is not None:
            made = self.parse(installed)
        else:
            with fetch_files(self.name, self.advice, self.builder, self.only) as files:
                made = self.parse(files)
        self._write(made, store)
        return made

    def status(self, cache: str | Path | None = None) -> str:
        """The place of the data, or how to get them; uses no network."""
        stored, installed = cache_folder(cache) / f"{self.name}.npz", self._installed()
        if stored.exists():
            return f"cached in {stored}"
        return f"not here: {self.advice}" if installed is None else f"in {installed}"

    def _installed(self) -> Path | None:
        """The folder of a package of the system that has the files."""
        paths = [Path(folder) for folder in self.folders]
        return next((path for path in paths if path.is_dir() and any(path.glob(self.pattern))), None)

    def _write(self, made: Dataset, store: Path) -> None:
        numbers = {name: np.asarray(getattr(made, name)) for name in ("train_size", *self.saved)}
        write_cached(self.name, store, {"x": made.x, "y": made.y, **numbers})


@contextmanager
def fetch_files(
    name: str, advice: str, builder: str | None = None, only: Collection[str] | None = None
) -> Iterator[Path]:
    """Downloads and checks files of a data set; yields a temporary folder with them by upstream's names."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import tensorflow_datasets as tfds

            infos: Any = tfds.builder(builder or name).url_infos
    except ImportError as error:
        raise ValueError(f"expected {name} on this machine, got nothing; {advice}") from error
    urls = {url.rsplit("/", 1)[-1]: url for url in infos}
    urls = {file: url for file, url in urls.items() if only is None or file in only}
    # Without this check an offline machine would spend minutes in retries.
    if not reachable(next(iter(urls.values()))):
        raise ValueError(f"expected {name} on this machine or a network to fetch it, got neither; {advice}")
    with tempfile.TemporaryDirectory() as folder:
        manager = tfds.download.DownloadManager(
            download_dir=folder, url_infos=infos, dataset_name=name, force_checksums_validation=True
        )
        try:
            files: Any = manager.download(urls)
        except Exception as error:  # errors of requests and TFDS, all handled alike
            raise ValueError(f"expected to fetch {name}, got {error!r}; {advice}") from error
        # Downloaded files have a hash of the address in their names: restore upstream's names.
        renamed = Path(folder) / "upstream"
        renamed.mkdir()
        for file, path in files.items():
            Path(path).rename(renamed / file)
        yield renamed


def upstream_file(path: Path, advice: str = "") -> Path:
    """The path of a file of a user's folder; a ValueError if there is none."""
    if not path.is_file():
        raise ValueError(f"expected the file {path.name} in the folder {path.parent}, got none{advice}")
    return path


@contextmanager
def opened_zip(path: Path) -> Iterator[Callable[[str], Any]]:
    """Yields a function that opens a file of a zip archive by the last part of its name; no file is written."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = {name.rsplit("/", 1)[-1]: name for name in archive.namelist() if "__MACOSX" not in name}

            def opened(name: str) -> Any:  # IO[bytes] for type checkers, which is no class of the file at run time
                if name not in members:
                    raise ValueError(f"expected the file {name} in the archive {path}, got none")
                return archive.open(members[name])

            yield opened
    except (zipfile.BadZipFile, EOFError, OSError, zlib.error, RuntimeError) as error:
        raise ValueError(f"expected a whole zip archive, got a damaged one in {path} ({error})") from error


def reachable(url: str, seconds: float = 4.0) -> bool:
    """Whether a HEAD request for one file gets any answer, even a refusal."""
    answered = threading.Event()

    def ask() -> None:
        try:
            with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=seconds):
                answered.set()
        except urllib.error.HTTPError as refusal:
            refusal.close()
            answered.set()
        except (OSError, ValueError):
            return

    # Use a thread, since a DNS lookup has no time limit.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(seconds)
    return answered.is_set()


def cache_folder(folder: str | Path | None = None) -> Path:
    """Returns ``folder`` if given, else ``$FLJAX_CACHE``, else ``fljax/data`` in the user's cache folder."""
    if folder is not None:
        return Path(folder).expanduser()
    if os.environ.get("FLJAX_CACHE"):
        return Path(os.environ["FLJAX_CACHE"]).expanduser()
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA", "~/AppData/Local")
    elif sys.platform == "darwin":
        base = "~/Library/Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "fljax" / "data"


def read_cached(name: str, folder: Path) -> dict[str, np.ndarray] | None:
    """Returns the arrays stored as ``name``; None if there are none, or, with a warning, if the file is damaged."""
    path = folder / f"{name}.npz"
    try:
        if not path.exists():
            return None
        with open(path, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != _digest_file(path).read_text(encoding="ascii").strip():
            raise ValueError("its SHA-256 differs from the one stored beside it")
        with np.load(path, allow_pickle=False) as arrays:
            return {key: arrays[key] for key in arrays.files}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        warnings.warn(f"the cached file {path} is not used and will be rebuilt: {error}", stacklevel=2)
        return None


def write_cached(name: str, folder: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Stores ``arrays`` as ``name``; warns if the folder cannot be written."""
    path = folder / f"{name}.npz"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        digest = _replace(path, lambda file: _save(file, **arrays))
        _replace(_digest_file(path), lambda file: file.write(digest.encode("ascii")))
    except OSError as error:
        warnings.warn(f"the data set {name} is not cached in {folder}: {error}", stacklevel=2)


def keep(source: Path, path: Path) -> None:
    """Copies a file to ``path`` atomically; warns if ``path`` cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(source, "rb") as whole:
            _replace(path, lambda file: shutil.copyfileobj(whole, file))
    except OSError as error:
        warnings.warn(f"the file {source.name} is not cached in {path.parent}: {error}", stacklevel=2)


def _digest_file(path: Path) -> Path:
    return path.with_suffix(".npz.sha256")


def _replace(path: Path, write: Callable[[IO[bytes]], Any]) -> str:
    """Writes a temporary file in the same folder and renames it, so that no reader sees an incomplete file."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w+b") as file:
            write(file)
            file.flush()
            file.seek(0)
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    return digest


_TENSORFLOW_ADVICE = "install it (pip install tensorflow-cpu)"
_HUGGING_FACE_ADVICE = "install it (pip install 'fljax[huggingface]')"


@shows(assemble)
def tfds_dataset(
    name: str,
    *,
    features: str | Sequence[str] | None = None,
    label: str | None = None,
    client: str | None = None,
    train_split: str = "train",
    test_split: str | None = None,
    folder: str | Path | None = None,
    **options: Unpack[LabelKeywords],
) -> Dataset:
    """A data set of TensorFlow Datasets, ``tfds:NAME`` in a config: ``tfds:kmnist``, ``tfds:emnist/letters``.

    ::

        [data]
        dataset = "tfds:kmnist"
        partition = "dirichlet"
        clients = 20

    TFDS downloads and prepares the data once, in its ``array_record`` format, which is read without TensorFlow. Some
    builders need TensorFlow, or another package, to prepare their files.

    Args:
      name: the name in TFDS, with configuration and version if wanted.
      features: the feature that models see, e.g. "image"; several numbers become one vector. By default the
        data set's own choice (``supervised_keys``).
      label: the feature to predict; by default the data set's own choice.
      client: the feature that says whose row it is, e.g. a writer's id; every value is a client.
      train_split: name of the split with the training rows; ``"train[:10%]"`` works, too.
      test_split: name of the split with the test rows; "test" if there is one.
      folder: folder of TFDS's data; ``~/tensorflow_datasets`` if not given.

    Raises:
      ValueError: if there is no such data set or feature, it cannot be downloaded, or needs a package that is not
        installed.
    """
    with _in_sentences(name):
        builder = _prepared(name, folder)
        info = builder.info
        keys = _supervised(info)
        names = {"features": features, "label": label}
        for option, key in zip(names, keys, strict=True):
            names[option] = key if names[option] is None else names[option]
            if names[option] is None:
                raise ValueError(f"expected {option}, one or more of the features {', '.join(info.features)}, got none")
        chosen = [names["features"]] if isinstance(names["features"], str) else list(names["features"] or ())
        for key in [*chosen, names["label"], *([] if client is None else [client])]:
            if key not in info.features:
                raise ValueError(unknown("feature", str(key), info.features))
        splits = [(train_split, False)]
        if test_split is not None or ("test" in info.splits and "test" not in train_split):
            splits.append(("test" if test_split is None else test_split, True))
        pieces = [
            _tfds_piece(builder, split, is_test, chosen, str(names["label"]), client) for split, is_test in splits
        ]
    class_names = getattr(info.features[names["label"]], "names", None)
    return assemble(pieces, class_names=class_names, **options)


@contextmanager
def _in_sentences(name: str) -> Iterator[None]:
    """Turns errors of TFDS, which have many classes and lines, into one sentence."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except ImportError as error:
        raise ValueError(_missing(name, error)) from None
    except ValueError as error:
        said = str(error)
        raise ValueError(said if said.startswith("expected ") else _failed(name, error)) from None
    except Exception as error:
        raise ValueError(_failed(name, error)) from None


def _missing(name: str, error: ImportError) -> str:
    """The sentence for a package that is not installed, which TFDS may name in the last line of its message alone."""
    missing = re.search(r"No module named '(\w+)", str(error))
    if missing is None:
        return _failed(name, error)
    advice = _TENSORFLOW_ADVICE if missing[1] == "tensorflow" else "install it"
    return f"expected {missing[1]}, which TFDS needs to prepare {name}, got none; {advice}"


def _failed(name: str, error: Exception) -> str:
    return f"expected TFDS to read {name}, got {type(error).__name__}: {shown(' '.join(str(error).split()))}"


def _prepared(name: str, folder: str | Path | None) -> Any:
    """The builder of a data set whose files are on this machine."""
    import tensorflow_datasets as tfds

    place = None if folder is None else str(with_home(folder))
    # Looked up first, since TFDS asks for TensorFlow before it says that there is no such data set. It also reads
    # prepared files whose builder is not here.
    names, first = tfds.list_builders(with_community_datasets=False), re.split("[/:]", name)[0]
    if first not in names and (place is None or not (Path(place) / first).is_dir()):
        raise ValueError(_unknown_name(name, names))
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):  # TFDS's own advice, which is for TensorFlow
        builder: Any = tfds.builder(name, data_dir=place, file_format="array_record")
    if not Path(builder.data_dir).is_dir():
        urls = list(getattr(builder, "url_infos", None) or ())
        if urls and not reachable(urls[0]):
            raise ValueError(
                f"expected {name} of TFDS on this machine, in {builder.data_dir}, or a network to fetch it, got neither"
            )
        builder.download_and_prepare(file_format="array_record")
    return builder


def _unknown_name(name: str, names: Sequence[str]) -> str:
    """The sentence for a name that TFDS does not have; it names the most similar of more than a thousand."""
    close = difflib.get_close_matches(name, list(names), n=3, cutoff=0.6)
    question = f" (did you mean {' or '.join(map(repr, close))}?)" if close else ""
    return f"expected the name of a data set of TFDS, got {shown(name)}{question}"


def _supervised(info: Any) -> tuple[Any, Any]:
    """The features and the label that the data set's authors chose; None where they did not."""
    keys = info.supervised_keys
    if isinstance(keys, tuple) and len(keys) >= 2 and isinstance(keys[0], str) and isinstance(keys[1], str):
        return keys[0], keys[1]
    return None, None


def _tfds_piece(builder: Any, split: str, test: bool, chosen: Sequence[str], label: str, client: str | None) -> Piece:
    """The rows of one split."""
    x, y, owners = [], [], []
    for row in builder.as_data_source(split=split):
        row: Mapping[str, Any]
        values = [np.asarray(row[key]) for key in chosen]
        x.append(values[0] if len(values) == 1 else np.stack([np.float32(value) for value in values]))
        y.append(row[label])
        if client is not None:
            owners.append(_plain(row[client]))
    if not x:
        raise ValueError(f"expected rows in the split {split!r}, got none")
    if x[0].dtype.kind not in "biuf":
        raise ValueError(f"expected numbers in the feature {chosen[0]!r}, got {shown(x[0].tolist())}")
    if len({row.shape for row in x}) > 1:
        raise ValueError(f"expected rows of one shape in {chosen[0]!r}, got {x[0].shape} and others")
    stacked = np.stack(x)
    stacked = stacked if stacked.dtype == np.uint8 and stacked.ndim > 2 else stacked.astype(np.float32)
    name = "test rows" if test else "training rows"
    return Piece(stacked, np.asarray(y), np.asarray(owners) if owners else None, test, name)


def _plain(value: Any) -> Any:
    value = np.asarray(value).item()
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


@shows(assemble)
def hugging_face_dataset(
    name: str,
    *,
    label: str = "label",
    features: str | Sequence[str] | None = None,
    client: str | None = None,
    configuration: str | None = None,
    train_split: str = "train",
    test_split: str | None = None,
    **options: Unpack[LabelKeywords],
) -> Dataset:
    """A data set of Hugging Face, ``hf:OWNER/NAME`` in a config; the extra ``huggingface`` has the package it needs.

    ::

        [data]
        dataset = "hf:flwrlabs/femnist"
        features = "image"
        label = "character"
        client = "writer_id"

    Args:
      name: the name on the hub, or a folder's path.
      label: the column to predict.
      features: the column of images or vectors, or the columns of numbers; all columns except label and client if not
        given.
      client: the column that says whose row it is; every value is a client.
      configuration: the data set's configuration, if it has several.
      train_split: name of the split with the training rows.
      test_split: name of the split with the test rows; "test" if there is one.

    Code that comes with a data set is never run.

    Raises:
      ValueError: if the package is not installed, the data set cannot be loaded, or a column does not exist or is
        neither numbers nor images.
    """
    try:
        datasets: Any = importlib.import_module("datasets")
    except ImportError as error:
        missing = error.name or "datasets"
        what = "the package datasets" if missing == "datasets" else f"{missing}, which the package datasets needs,"
        raise ValueError(f"expected {what} for hf:{name}, got none; {_HUGGING_FACE_ADVICE}") from None
    try:
        splits: Any = datasets.load_dataset(name, configuration)
    except Exception as error:  # errors of the hub, of files and of networks
        said = shown(" ".join(str(error).split()))
        raise ValueError(f"expected Hugging Face to load {name}, got {type(error).__name__}: {said}") from None
    if not isinstance(splits, Mapping):
        splits = {train_split: splits}
    wanted = [(train_split, False)]
    if test_split is not None or ("test" in splits and train_split != "test"):
        wanted.append(("test" if test_split is None else test_split, True))
    for split, _ in wanted:
        if split not in splits:
            raise ValueError(unknown("split", split, splits))
    pieces = [_hugging_face_piece(splits[split], label, features, client, is_test) for split, is_test in wanted]
    names = getattr(splits[train_split].features[label], "names", None)
    return assemble(pieces, class_names=names, **options)


def _hugging_face_piece(
    split: Any, label: str, features: str | Sequence[str] | None, client: str | None, test: bool
) -> Piece:
    """The rows of one split."""
    columns = list(split.column_names)
    if isinstance(features, str):
        chosen = [features]
    else:
        chosen = [column for column in columns if column not in (label, client)] if features is None else list(features)
    for column in [*chosen, label, *([] if client is None else [client])]:
        if column not in columns:
            raise ValueError(unknown("column", column, columns))
    if not chosen:
        raise ValueError("expected at least one column of features, got none")
    values = [_numbers(split[column], column) for column in chosen]
    if len(values) == 1:
        x = values[0] if values[0].ndim > 1 else values[0][:, None]
    else:
        wrong = [column for column, array in zip(chosen, values, strict=True) if array.ndim > 1]
        if wrong:
            raise ValueError(f"expected one number for each row in each of several columns, got more in {wrong[0]!r}")
        x = np.stack([array.astype(np.float32) for array in values], axis=1)
    x = x if x.dtype == np.uint8 and x.ndim > 2 else x.astype(np.float32)
    owner = None if client is None else np.asarray(list(split[client]))
    return Piece(x, list(split[label]), owner, test, "test rows" if test else "training rows")


def _numbers(column: Any, name: str) -> np.ndarray:
    """A column as an array; images, which have ``convert`` as Pillow's do, as uint8 with channels."""
    rows = list(column)
    if rows and hasattr(rows[0], "convert"):
        if deep := [row.mode for row in rows if row.mode.startswith(("I", "F"))]:
            raise ValueError(f"expected images of 8 bits in the column {name!r}, got the mode {deep[0]}")
        grey = all(row.mode in ("1", "L") for row in rows)
        rows = [np.asarray(row.convert("L" if grey else "RGB")) for row in rows]
        rows = [row[..., None] if row.ndim == 2 else row for row in rows]
    try:
        array = np.asarray(rows)
    except ValueError:
        raise ValueError(f"expected rows of one shape in the column {name!r}, got several") from None
    if array.dtype.kind not in "biuf":
        got = shown(rows[0]) if rows else "no rows"
        raise ValueError(f"expected numbers or images in the column {name!r}, got {got}; choose columns with features=")
    return array
