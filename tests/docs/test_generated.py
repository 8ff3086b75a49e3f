"""The generated pages: one for each name, from docstrings and signatures, with nothing missing."""

from __future__ import annotations

import inspect
import json
import pathlib
import re
import textwrap
import tomllib
from typing import Annotated, Literal

import pytest
from pydantic import Field

from docs.generator import markdown, methods, notebooks, reference
from fljax import algorithms, config, scenarios
from fljax.cli.catalogue import describe, entries, written
from fljax.config import keys
from fljax.config.keys import Named
from fljax.config.reading import read
from fljax.core.values import parameters_of
from fljax.metrics.registry import METRICS

ROOT = pathlib.Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return methods.pages() | reference.pages()


@pytest.mark.in_turn
def test_every_name_has_a_page(pages: dict[str, str]) -> None:
    for name, entry in algorithms.REGISTRY.items():
        text = pages[f"methods/{name}.md"]
        for each in (*parameters_of(entry.build), *entry.differentiable, *entry.flat):
            assert f"| `{each}` |" in text or each in ("task", "local", "reference"), (name, each)
    for name, scenario in scenarios.REGISTRY.items():
        text = pages[f"methods/scenarios/{name}.md"]
        for kind, names in (("yes", scenario.differentiable), ("zero", scenario.flat)):
            assert all(re.search(rf"\| `{each}` \|.*\| {kind} \|", text) for each in names), (name, kind)


@pytest.mark.in_turn
def test_configs_of_the_pages_are_valid(pages: dict[str, str]) -> None:
    base = read(ROOT / "configs" / "quickstart.toml")
    base["data"] |= {"valid_fraction": 0.2, "held_fraction": 0.1}
    base["participation"] = {"clients_per_round": base["data"]["clients"]}
    texts = [(path, text) for path, page in pages.items() for text in re.findall(r"```toml\n(.*?)```", page, re.DOTALL)]
    assert len(texts) > len(algorithms.REGISTRY)
    for path, text in texts:
        raw = tomllib.loads(textwrap.dedent(text))
        assert config.parse({**base, **raw}).algorithms, path


@pytest.mark.parametrize("name", ["ipfl", "iafl", "misreporting"])
def test_pages_and_show_say_the_same(name: str, pages: dict[str, str]) -> None:
    (found,) = describe(name)
    text = pages[f"methods/{'scenarios/' * (found.kind == 'scenario')}{name}.md"]
    for words in (*found.about, found.returns, *(each.text for each in found.parameters), *found.facts.values()):
        assert words in text or words.startswith("\n"), words
    for used, tables in found.configs.items():
        assert f"| `{used}` | {', '.join(f'`{each}`' for each in tables)} |" in text


def test_configs_and_tables_of_an_algorithm(pages: dict[str, str]) -> None:
    used = methods.described("incfl").configs
    assert used["quickstart"] == ()
    assert "maxfl_table1_flexible" in used["maxfl/table1_fmnist"]
    assert "| `maxfl/table1_fmnist` | `maxfl_table1_flexible` |" in pages["methods/incfl.md"]


def test_pages_show_equations(pages: dict[str, str]) -> None:
    page, incfl = pages["methods/incfl.md"], methods.equations()["incfl"]
    (first, second), words = incfl.equations, " ".join(incfl.where.split())
    assert f"\n## Equations\n\n\\[\n{first}\n\\]\n\n\\[\n{second}\n\\]\n\n{words} The step" in page
    assert page.index("## Equations") < page.index("## Hyper-parameters")
    assert "default `server_optimizer`" not in pages["methods/standalone.md"]
    assert "\n## Symbols\n" in pages["methods/index.md"]


def test_lists_have_all_names(pages: dict[str, str]) -> None:
    for kind in reference.LISTS:
        assert all(f"| `{name}` |" in pages["reference/lists.md"] for name in entries(kind))


def test_every_key_of_a_config_has_a_sentence() -> None:
    said = {name: set(own) for name, own in reference.described().items()}
    keys = {
        model.__name__: {key for key in model.model_fields if not (key == "options" and issubclass(model, Named))}
        for model in reference.TABLES.values()
    }
    assert said == keys


def test_types_of_keys_are_words() -> None:
    say = reference.kind_in_words
    assert say(tuple[Annotated[int, Field(ge=0)], ...]) == "list of integers from 0"
    assert say(tuple[str, ...]) == "list of texts"
    assert say(tuple[keys.Scenario, ...] | None) == "list of tables"
    assert say(tuple[Literal["a", "b"], ...]) == 'list of `"a"` or `"b"`'
    assert say(tuple[tuple[bool, ...], ...]) == "list of lists of true or false"


def test_the_page_says_what_keys_take(pages: dict[str, str]) -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]*\|[^|]*)\|", pages["reference/config.md"], re.MULTILINE)[::-1])
    assert rows["seeds"].startswith("integer above 0 or list of different integers from 0 ")
    assert rows["free_riders"].startswith("list of integers from 0 ")
    assert rows["devices"].startswith('`"all"` or integer above 0 ')
    assert rows["ceiling"].startswith('`"max"` or number above 0 ')
    assert "natural" in rows["partition"]
    assert re.search(
        r"^\| `clients` \| integer above 0 \| .*all clients in the data \|", pages["reference/config.md"], re.MULTILINE
    )
    assert not re.search(r"integer from \d+s|numbers? above \d+s", pages["reference/config.md"])


@pytest.mark.parametrize("name", ["fedavg", "fedavg_finetune", "lg_fedavg", "scaffold", "ipfl", "standalone"])
def test_defaults_are_those_of_signatures(name: str, pages: dict[str, str]) -> None:
    defaults = pages["methods/index.md"].partition("## Defaults")[2]
    index = next(line for line in defaults.splitlines() if line.startswith(f"| [`{name}`]"))
    page = pages[f"methods/{name}.md"]
    arguments = inspect.signature(algorithms.REGISTRY[name].build).parameters
    for argument in ("clients_per_round", "weights"):
        if argument in arguments:
            default = arguments[argument].default
            words = f"{'all' if default is None else written(default)} (`{argument}`)"
            assert words in index
            assert words in page
    assert ("no option" in index) == ("weights" not in arguments)


def test_signatures_are_formatted() -> None:
    """mkdocstrings leaves them on one line without Black or Ruff."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert any(each.startswith("ruff") for each in extras["docs"])


def test_every_metric_is_listed(pages: dict[str, str]) -> None:
    for name in METRICS:
        assert f"`{name.removeprefix('unseen_')}`" in pages["reference/metrics.md"], name


def test_public_names_are_in_the_reference(pages: dict[str, str]) -> None:
    text = pages["reference/api/fljax.md"]
    assert {"simulate", "standalone", "load", "Algorithm", "Local"} <= set(
        re.findall(r"^::: fljax\.(\w+)$", text, re.M)
    )
    assert "::: fljax.data.federate" in pages["reference/api/data.md"]


def test_texts_become_markdown() -> None:
    assert (markdown.table(("a",), [("x | y",)]).splitlines()[-1], markdown.paragraph("one")) == (r"| x \| y |", "one")
    assert markdown.paragraph("one:\n    x = y") == "one:\n\n```text\n    x = y\n```"
    assert markdown.paragraph("\n  a     b c\n  d     e f") == "| a | b c |\n| --- | --- |\n| d | e f |"
    assert markdown.prose("one\ntwo\n\n- three\n- four") == "one two\n\n- three\n- four"


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
