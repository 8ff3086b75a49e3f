"""Commands that are refused: exit code 2 and one sentence, before anything runs or is written."""

from __future__ import annotations

import pathlib
import shlex
from typing import Any

import numpy as np
import pandas
import pytest

from fljax.published import beside as table_runs
from fljax.published.beside import TableRun
from fljax.results import Results, folders
from tests.data.written import SCANS, write
from tests.report.kinds.small import small
from tests.toys.command import refused
from tests.toys.configs import DIGITS, config_text

TINY = config_text(DIGITS, head="rounds = 4", batch_size=8)
PUBLISHED = '[published]\ntables = ["incfl_table1_unseen"]\ndataset = "FMNIST"'
# Data of a user in each form, and the keys of [data] in the config of that form.
OWN = {
    "patients": 'dataset = "patients.csv"\nlabel = "ill"\nclient = "hospital"',
    "study": 'dataset = "study/train.csv"\ntest_file = "test.csv"\nlabel = "ill"\nclient = "site"',
    "tables": 'dataset = "hospitals/"\nlabel = "ill"',
    "arrays": 'dataset = "arrays/"',
    "images": 'dataset = "scans/train.csv"\nlabel = "ill"\nclient = "site"\nimages = "file"\nsize = [4, 4]',
}
ROWS = "age,ill,site\n1,no,a\n2,yes,b\n3,yes,a\n4,no,b\n"
PLAIN = "age,ill\n1,no\n2,yes\n"
FILES: dict[str, Any] = {
    "tiny.toml": TINY,
    "table.toml": config_text(DIGITS, "fedavg", "incfl", head='name = "tiny-table"\nrounds = 4', more=PUBLISHED),
    "sweep.toml": config_text(DIGITS, more='[sweep]\ngrid = {"local.learning_rate" = [0.1, 0.2]}'),
    "bad.toml": "own = 2\n",
    "key.toml": "[lie]\nowns = 2.0\n",
    "study/train.csv": ROWS,
    "study/test.csv": ROWS,
    **dict.fromkeys(
        [f"hospitals/{part}/{name}.csv" for part in ("train", "test") for name in ("north", "south")], PLAIN
    ),
    "arrays/2.npz": {"x": np.ones((10, 3)), "y": np.arange(10) % 2},
    "arrays/10.npz": {"x": np.ones((10, 3)), "y": np.arange(10) % 2},
    **{f"{name}.toml": config_text(keys, head="rounds = 2", standalone=2) for name, keys in OWN.items()},
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A folder with configs, with data of a user, and with a run that has data for two kinds of figure."""
    folder = write(tmp_path_factory.mktemp("refused"), FILES)
    columns = {"age": np.arange(40), "income": np.arange(40) * 1000.5}
    columns |= {
        "hospital": [f"h{row % 4}" for row in range(40)],
        "ill": ["yes" if row % 3 else "no" for row in range(40)],
    }
    pandas.DataFrame(columns).to_csv(folder / "patients.csv", index=False)
    metrics, records = small(clients=3)
    kept = ["test_accuracy", "test_loss", "standalone_test_loss", "incentivised_participation_rate"]
    (folder / "ran").mkdir()
    (folder / "ran" / "config.toml").write_text("rounds = 6\n")
    folders.save_results(folder / "ran", Results(metrics[kept], records[["participation"]]), "rounds = 6\n")
    return folder


RUN = [
    ("run none.toml", "config file, got 'none.toml'"),
    ("run tiny.toml --set rounds=-1", "rounds: expected a number of at least 0, got -1"),
    ("run tiny.toml --set data.dataset=digit", "(did you mean 'digits'?)"),
    ("run tiny.toml --seeds 0", "seeds: expected a positive number"),
    ("run tiny.toml --sets x", "No such option"),
    ("run", "Missing argument"),
    ("run quikstart", "(did you mean the shipped config 'quickstart'?)"),
    ("sweep tiny.toml", "a grid to sweep over"),
    ("sweep tiny.toml --grid local.step=1,2", "(did you mean 'steps'?)"),
    ("sweep tiny.toml --grid local.steps=", "a list of different values, got []"),
    ("sweep tiny.toml --grid local.steps=1 --set sweep.metric=x", "one of the metrics"),
    ("nonsense", "No such command"),
]
SWEEP = [
    ("5/4", "--part I/N with I from 1 to N, such as 1/4, got '5/4'"),
    ("0/4", "--part I/N with I from 1 to N, such as 1/4, got '0/4'"),
    ("2", "--part I/N with I from 1 to N, such as 1/4, got '2'"),
    ("-1/2", "--part I/N with I from 1 to N, such as 1/4, got '-1/2'"),
    ("1/2/3", "--part I/N with I from 1 to N, such as 1/4, got '1/2/3'"),
    ("1/2 --distributed", "--part or --distributed, got both"),
    ("1/2 --process-id 1", "--distributed beside --coordinator-address"),
    ("1/2 --keep-checkpoints 0", "to keep at least 1 checkpoint"),
]
SWEEP = [(f"sweep sweep.toml --out out --part {part}", words) for part, words in SWEEP] + [
    ("sweep sweep.toml --part 1/2", "--out DIR with --part, the folder that all parts share, got none"),
    ("sweep", "CONFIG, or --join DIR, got neither"),
    ("sweep tiny.toml --join out", "--join DIR without CONFIG, since DIR says what was run, got both"),
    ("sweep --join out --seeds 0", "--join DIR without --seeds, since DIR says what was run"),
    ("sweep --join out --part 1/2", "--join DIR without --part, since DIR says what was run"),
    ("sweep --join out --process-id 1", "--join DIR without --distributed, since DIR says"),
    ("sweep --join out", "the folder of a sweep in parts (fljax sweep CONFIG --out DIR --part I/N), got 'out'"),
    ("sweep --join tiny.toml", "the folder of a sweep in parts"),
]
READ = [
    ("list algorithm", "(did you mean 'algorithms'?)"),
    ("list config", "(did you mean 'configs'?)"),
    ("cite incfll", "(did you mean 'incfl'?)"),
    ("cite dropout", "an algorithm or a scenario from a paper, got dropout"),
    ("show fedprx", "(did you mean 'fedprox'?)"),
    ("show :smile:", "got ':smile:'"),
    ("show '[red]a[/red]'", "got '[red]a[/red]'"),
    ("report .", "a run folder"),
    ("data prepare digit", "digits"),
    ("data show patients.toml --out x.txt", "--out to end in one of .png, .pdf, .svg"),
    ("data show patients.toml --out /nowhere/at/all/x.png", "a place for the picture"),
    ("data show patients.toml --set data.label=il", "did you mean 'ill'"),
    ("compare a b --ranks --json --latex", "one of --json and --latex with --ranks, got both"),
    ("compare none", "at least two folders of runs, got 1"),
    ("compare none nothing", "a run folder with results.nc, got none"),
    ("compare none ./none", "got one of them twice"),
    ("export none --csv", "a run folder with results.nc, got none"),
    ("export none", "one of --latex, --csv, --pdf, --gains, --leaving and --figures, got none"),
    ("export none --csv --pdf", "got --csv and --pdf"),
    ("export none --metric a --pdf", "--metric with --latex or --csv"),
    ("export ran --figures curves", "one of the figures client_curves, contribution_accuracy, client_spread, "),
    ("export ran --figures ,", "names of figures, got none"),
    ("export ran --figures surrogate_weights", "records gap and weight by row for the figure surrogate_weights"),
    ("report ran --figures client_curves --clients 0,3", "ids of clients from 0 to 2, got 3"),
    ("report ran --figures client_curves --clients -1", "ids of clients from 0 to 2, got -1"),
    ("report ran --figures client_curves --clients a", "ids of clients such as 0,5,9 with --clients"),
    ("report ran --clients 1", "--clients with --figures, got it without"),
    ("export ran --figures client_spread --metric loss", "one of the metrics test_accuracy, test_loss, got"),
    ("report ran --metric test_loss", "--metric with --figures, got it without"),
    ("report ran --live --figures all", "one run, and no --json or --figures, with --live"),
    ("export ran --csv --figures all", "--leaving and --figures, got --csv and --figures"),
    ("export ran --latex --leaving", "--leaving and --figures, got --latex and --leaving"),
    ("export ran --leaving --metric test_loss", "got it with --leaving"),
]
REPRODUCE = [
    ("", "a table (fljax list tables), or --list, got neither"),
    ("nothing", "one of the tables"),
    ("nothing --list", "one of the tables"),
    ("incfl_table1_unseen --dataset MNIST", "rows about MNIST"),
    ("incfl_table1_unseen no_folder", "a run folder with results.nc, got no_folder"),
    ("incfl_table1_unseen no_folder --quick", "a run folder, or --out, --seeds or --quick"),
    ("incfl_table1_unseen no_folder --list", "--list without a run folder"),
    ("incfl_table1_unseen --quick --save a.csv", "--save without --quick"),
    ("incfl_table1_unseen --seeds 0", "seeds: expected a positive number ... got 0"),
    ("incfl_table1_unseen --seeds x", "value for '--seeds': Input should be a valid integer"),
    ("incfl_table1_unseen --checkpoint-every -1", "seconds between checkpoints of at least 0, got -1.0"),
]
REPRODUCE = [(f"reproduce {each}", words) for each, words in REPRODUCE]
WHOLE_RUNS = [
    ("worth", "--among 0-1", "--among to be leave_one_out, or coalitions of client numbers"),
    ("worth", "--among ''", "--among to be leave_one_out, or coalitions of client numbers"),
    ("worth", "--baseline zero", "--baseline to be initial, chance or a number, got 'zero'"),
    ("worth", "--max-runs 0", "--max-runs to be at least 1, got 0"),
    ("worth", "--value no_module:f", "there is no module 'no_module'"),
    ("worth", "--value module:f --no-import", "got the import path 'module:f'"),
    ("worth", "--estimators shaply", "one of the estimators"),
    ("certify", "--tolerance -1", "--tolerance to be at least 0, got -1.0"),
    ("certify", "--confidence 1", "--confidence to be between 0 and 1, got 1.0"),
    ("certify", "--method hoeffding", "--method to be bonferroni or max_t, got 'hoeffding'"),
    ("certify", "--metric accuracy", "--metric to be test_accuracy or test_loss, got 'accuracy'"),
    ("certify", "--candidates -1", "--candidates to be a whole number of at least 0, got -1"),
    ("certify", "--identities 0", "--identities to be a whole number of at least 1, got 0"),
    ("certify", "--max-runs 0", "--max-runs to be a whole number of at least 1, got 0"),
    ("certify", "--deviators 0,-1", "--deviators to be different ids with commas, got '0,-1'"),
    ("certify", "--deviators '1, 1'", "--deviators to be different ids with commas, got '1, 1'"),
    ("certify", "--deviations 'zero ridr'", "got 'zero ridr' (did you mean 'zero rider'?)"),
    ("certify", "--deviations none.toml", "'none.toml' to be readable, got: No such file"),
    ("certify", "--deviations bad.toml", "a table of numbers for each deviation of 'bad.toml', got own = 2"),
    ("certify", "--deviations key.toml", "lie: expected one of the keys ... got 'owns' (did you mean 'own'?)"),
    *(
        (command, "--set round=3", "round: expected one of the keys ... got 'round'")
        for command in ("worth", "certify")
    ),
    *((command, "--seeds 0", "seeds: expected a positive number ... got 0") for command in ("worth", "certify")),
]
WHOLE = [(f"{command} tiny.toml --out x {option}", words) for command, option, words in WHOLE_RUNS]
DATA = [
    ("patients", "data.dataset=nothing.csv", "data.dataset: expected the path of a file, got"),
    ("patients", "data.dataset=mine.xlsx", "data.dataset: expected a folder, or a file that ends in one of .csv"),
    ("patients", "data.dataset=patients", "data.dataset: expected one of the datasets digits"),
    ("patients", "data.label=il", "column of the table (age, income, hospital, ill), got 'il' (did you"),
    ("patients", "data.client=town", "got 'town'"),
    ("patients", "data.lable=x", "data: expected one of the keys dataset"),
    (
        "patients",
        "data.dataset_options.label=x",
        "data.label: expected label here or in data.dataset_options, got both",
    ),
    ("patients", "data.unseen=4", "data.unseen: expected fewer than 4"),
    ("patients", "data.partition=iid", "data.clients: expected a value"),
    ("patients", "data.standardise=1", "data.dataset_options.standardise: expected true or false, got 1"),
    ("patients", "data.label=income --set 'data.features=[\"age\"]'", "whose labels are no classes"),
    ("study", "data.test_file=no.csv", "data.dataset: train.csv: test_file: expected the path of a file"),
    ("study", "data.test_file=3", "data.dataset_options.test_file: expected text in quotes, got 3"),
    ("study", "data.part=site", "data.dataset: train.csv: expected part, a column that says"),
    ("study", "data.images=site", "data.dataset: train.csv: expected the image files that the column 'site'"),
    ("tables", "data.client=ill", "the files of this folder say themselves whose rows they have, so leave client out"),
    ("tables", "data.label=age2", "data.dataset: train/north.csv: expected a column of the table (age, ill)"),
    ("tables", "data.unseen=2", "data.unseen: expected fewer than 2"),
    ("arrays", "data.label=z", "data.dataset: arrays: 10.npz: expected one of the arrays x, y, got 'z'"),
    ("images", "data.size=[4]", "data.dataset: train.csv: expected size as [height, width], two whole numbers"),
    ("images", "data.dataset=scans/", "data.dataset: expected files of one kind in the folder 'scans', got tables"),
]
EXPERIMENTS = ("run.run", "sweep.run", "sweep.run_part", "worth.run", "certify.run")
OWN_DATA = [(f"run {form}.toml --quiet --set {change}", words) for form, change, words in DATA]


def never(*_: Any, **__: Any) -> None:
    pytest.fail("an experiment runs")


@pytest.mark.parametrize(("command", "words"), RUN + SWEEP + READ + REPRODUCE + WHOLE + OWN_DATA)
def test_a_command(place: pathlib.Path, command: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    own = (command, words) in OWN_DATA  # which a run reads after all else, in a folder of its own
    if "images.toml" in command:
        pytest.importorskip("PIL")
        write(place / "scans", SCANS)
    for name in () if own else EXPERIMENTS:
        monkeypatch.setattr(f"fljax.experiments.{name}", never)
    monkeypatch.setattr(table_runs, "table_runs", lambda table: (TableRun(str(place / "table.toml")),))
    monkeypatch.chdir(place)
    before = set(place.rglob("*"))
    sentence = refused(*shlex.split(command))
    assert all(each in sentence for each in words.split("...")), sentence
    new = set(place.rglob("*")) - before
    assert not new or (own and all(path.is_relative_to(place / "runs") for path in new))
