from __future__ import annotations

import sys

import pytest

from fljax.core import names


def test_unknown_lists_valid_names_and_the_nearest():
    sentence = names.unknown("algorithm", "fedavgg", ["fedavg", "incfl"])
    assert sentence == "expected one of the algorithms fedavg, incfl, got 'fedavgg' (did you mean 'fedavg'?)"


def test_unknown_asks_nothing_where_nothing_is_near():
    assert names.unknown("model", "zzz", ["mlp"]) == "expected one of the models mlp, got 'zzz'"


def test_unknown_with_nothing_to_choose_from():
    sentence = names.unknown("option", "size", [])
    assert sentence == "expected no option (there are none to choose from), got 'size'"


@pytest.mark.parametrize("got", ["Fashion-MNIST", "fashion_mnits", "fashion mnist"])
def test_nearest_is_blind_to_case_and_hyphens(got):
    assert names.nearest(got, ["digits", "fashion_mnist"]) == "fashion_mnist"


def test_resolve_registry_entry():
    assert names.resolve("one", {"one": 1}, "number") == 1


def test_resolve_unknown_name():
    with pytest.raises(ValueError, match=r"did you mean 'one'\?\); one's own number is written"):
        names.resolve("onee", {"one": 1}, "number")


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty current directory, whose modules are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_resolve_import_path_in_current_directory(here):
    (here / "mine_a.py").write_text("class Box:\n    build = len\n")
    path = list(sys.path)
    assert names.resolve("mine_a:Box.build", {}, "algorithm") is len
    assert sys.path == path


def test_resolve_missing_attribute(here):
    (here / "mine_b.py").write_text("def builder(): ...\n")
    with pytest.raises(ValueError, match=r"called 'bilder' in 'mine_b'.*did you mean 'builder'") as caught:
        names.resolve("mine_b:bilder", {}, "algorithm")
    assert caught.value.__suppress_context__


@pytest.mark.parametrize("name", ["no_such_module:x", "no_such_package.inner:x"])
def test_resolve_missing_module(here, name):
    with pytest.raises(ValueError, match="there is no module 'no_such_") as caught:
        names.resolve(name, {}, "model")
    assert caught.value.__suppress_context__


@pytest.mark.parametrize("name", [":x", "module:", ".relative:x"])
def test_resolve_malformed_path(name):
    with pytest.raises(ValueError, match="expected an import path 'module:name' of a model"):
        names.resolve(name, {}, "model")


def test_resolve_module_that_fails_keeps_the_cause(here):
    (here / "mine_c.py").write_text("import no_such_dependency\n")
    with pytest.raises(ValueError, match="expected 'mine_c' to import, got No module named"):
        names.resolve("mine_c:x", {}, "model")
    (here / "mine_d.py").write_text("1 / 0\n")
    with pytest.raises(ValueError, match="got ZeroDivisionError") as caught:
        names.resolve("mine_d:x", {}, "model")
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_labels_as_names_of_files():
    assert names.file_name("q-ffl (q=1)") == "q-ffl %28q%3D1%29"
    assert [names.file_name(each) for each in (".", "..", "../a")] == ["%2E", "%2E%2E", "..%2Fa"]
    assert names.file_name("FedAvg").startswith("FedAvg-")
    assert len(names.file_name("x" * 500)) == 197
