"""The generated pages: one for each name, from docstrings and signatures, with nothing missing."""

from __future__ import annotations

import json
import pathlib
import re
import textwrap
import tomllib
from typing import Literal

import pytest

from docs.generator import docstrings, methods, notebooks, reference
from fljax import algorithms, config, scenarios
from fljax.config.keys import Named
from fljax.config.reading import read
from fljax.metric_names import METRICS

ROOT = pathlib.Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return methods.pages() | reference.pages()


def test_every_name_has_a_page(pages: dict[str, str]) -> None:
    for name, entry in algorithms.REGISTRY.items():
        text = pages[f"methods/{name}.md"]
        for each in docstrings.own_parameters(entry.build):
            assert f"| `{each}` |" in text, (name, each)
        for each in (*entry.differentiable, *entry.flat):
            assert f"| `{each.rpartition('.')[2]}` |" in text, (name, each)
    for name in scenarios.REGISTRY:
        assert f"methods/scenarios/{name}.md" in pages


def test_configs_of_the_pages_are_valid(pages: dict[str, str]) -> None:
    base = read(ROOT / "configs" / "quickstart.toml")
    base["data"] |= {"valid_fraction": 0.2, "held_fraction": 0.1}
    base["participation"] = {"clients_per_round": base["data"]["clients"]}
    texts = [(path, text) for path, page in pages.items() for text in re.findall(r"```toml\n(.*?)```", page, re.DOTALL)]
    assert len(texts) > len(algorithms.REGISTRY)
    for path, text in texts:
        raw = tomllib.loads(textwrap.dedent(text))
        assert config.parse({**base, **raw}).algorithms, path


def test_every_hyper_parameter_is_explained() -> None:
    for entry in (*algorithms.REGISTRY.values(), *scenarios.REGISTRY.values()):
        meanings = docstrings.items(docstrings.sections(entry.build)["Args"])
        assert set(docstrings.own_parameters(entry.build)) <= set(meanings), entry.build


def test_facts_of_unlike_algorithms() -> None:
    assert methods.facts("fedavg")["aggregation"] == "streamed"
    assert methods.facts("fedavg")["server keeps"] == "1 model"
    assert methods.facts("fedavg")["a client keeps"] == "nothing"
    assert methods.facts("iafl")["aggregation"] == "stacked"
    assert methods.facts("iafl")["server keeps"] == "a model for each client"
    assert methods.facts("scaffold")["a client keeps"] == "1 model"
    assert methods.facts("fedproto")["a client sends"] == "less than a model"
    assert methods.facts("standalone")["aggregation"] == "none"


def test_configs_and_tables_of_an_algorithm() -> None:
    used = dict(methods.users()["incfl"])
    assert used["quickstart.toml"] == ""
    assert "`maxfl_table1_flexible`" in used["maxfl/table1_fmnist.toml"]


def test_every_key_of_a_config_has_a_sentence() -> None:
    said = {name: set(own) for name, own in reference.described().items()}
    keys = {
        model.__name__: {key for key in model.model_fields if not (key == "options" and issubclass(model, Named))}
        for model in reference.TABLES.values()
    }
    assert said == keys


def test_every_metric_is_listed(pages: dict[str, str]) -> None:
    for name in METRICS:
        assert f"`{name.removeprefix('unseen_')}`" in pages["reference/metrics.md"], name


def test_public_names_are_in_the_reference(pages: dict[str, str]) -> None:
    text = pages["reference/api/fljax.md"]
    assert {"simulate", "standalone", "load", "Algorithm", "Local"} <= set(
        re.findall(r"^::: fljax\.(\w+)$", text, re.M)
    )
    assert "::: fljax.data.federate" in pages["reference/api/data.md"]


def test_docstrings_are_taken_apart() -> None:
    def build(inner: int, *, rate: float = 0.1) -> None:
        """One line.

        More.

        Args:
          inner: first
            and second line.
          rate: a number.

        Returns:
          Nothing.
        """

    found = docstrings.sections(build)
    assert found[""] == "One line.\n\nMore."
    assert docstrings.items(found["Args"]) == {"inner": "first and second line.", "rate": "a number."}
    assert list(docstrings.own_parameters(build)) == ["rate"]
    assert docstrings.alternatives('A | B[C | "x|y"] | None') == ["A", 'B[C | "x|y"]', "None"]
    assert docstrings.type_in_words('float | Float[Array, ""]') == "number"
    assert docstrings.table(("a",), [("x | y",)]).splitlines()[-1] == r"| x \| y |"
    assert docstrings.type_in_words("None | Kind", {"Kind": Literal["a", "b"]}) == 'None, `"a"`, `"b"`'
    assert docstrings.prose("====  ====\na     b c\n====  ====\nd     e f\n====  ====") == (
        "| a | b c |\n| --- | --- |\n| d | e f |"
    )
    assert docstrings.prose("one\ntwo\n\n- three\n- four") == "one two\n\n- three\n- four"


def test_badges_need_an_address() -> None:
    name = next(iter(notebooks.pages()))
    assert "colab" not in notebooks.pages()[name].text.lower()
    text = notebooks.pages("me/fljax/blob/main")[name].text
    assert f"https://colab.research.google.com/github/me/fljax/blob/main/notebooks/{name}.ipynb" in text


def test_badges_and_notebooks_have_one_address() -> None:
    """``extra.colab`` in mkdocs.yml says where the repository is, and SOURCE in notebooks what pip installs."""
    colab = re.findall(r'^  colab: "(.*)"$', (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)[0]
    source = f"git+https://github.com/{'/'.join(colab.split('/')[:2])}" if colab else ""
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        assert f'SOURCE = \\"{source}\\"' in path.read_text(encoding="utf-8"), path


@pytest.mark.parametrize("path", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem)
def test_notebooks_install_what_they_need(path: pathlib.Path) -> None:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    tagged = [cell for cell in cells if "install" in cell["metadata"].get("tags", ())]
    assert len(tagged) == 1
    assert cells.index(tagged[0]) == 1  # below the title
    page = notebooks.page(path)
    assert "pip install" not in page.text
    for name, content in page.pictures.items():
        assert content.startswith(b"\x89PNG")
        assert f"({name})" in page.text
