"""The hook of mkdocs: adds the generated pages to the site, and formulas as MathML."""

# pyright: reportMissingImports=false
from __future__ import annotations

import functools
import pathlib
import re
import sys
from html import unescape
from typing import Any

ROOT = pathlib.Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))  # so that fljax and docs are those of this checkout

from docs.generator import certificates, claims, methods, notebooks, reference  # noqa: E402
from fljax import __version__, algorithms, scenarios  # noqa: E402

# Pictures of results, by their path in the site.
PICTURES = {
    "assets/throughput.png": ROOT / "benchmarks/results/current/throughput.png",
    "assets/quickstart.png": ROOT / "benchmarks/results/current/quickstart.png",
    "assets/mechanisms.png": ROOT / "benchmarks/results/current/mechanisms.png",
    "assets/robust.png": ROOT / "benchmarks/results/current/robust.png",
}


@functools.cache
def pages() -> dict[str, str]:
    """All generated pages but the notebooks, by path."""
    return methods.pages() | reference.pages() | claims.pages() | certificates.pages()


def navigation(colab: str = "") -> dict[str, list[Any]]:
    """The sections that have generated pages."""
    around = [{name: f"methods/scenarios/{name}.md"} for name in scenarios.REGISTRY]
    return {
        "Methods": [
            "methods/index.md",
            *({name: f"methods/{name}.md"} for name in algorithms.REGISTRY),
            {"Scenarios": ["methods/scenarios/index.md", *around]},
            *({"Does it pay to lie?": path} for path in certificates.pages()),
        ],
        "Notebooks": [{each.title: f"notebooks/{name}.md"} for name, each in notebooks.pages(colab).items()],
        "Reference": [
            {"Config": "reference/config.md"},
            {"Metrics": "reference/metrics.md"},
            {"Names": "reference/lists.md"},
            {"Command line": "reference/command_line.md"},
            {
                "Python": [
                    {"fljax": "reference/api/fljax.md"},
                    *({name: f"reference/api/{name}.md"} for name in reference.MODULES),
                ]
            },
        ],
    }


def on_config(config: Any) -> Any:
    """Fills the sections of the navigation that are empty in mkdocs.yml."""
    generated = navigation(config.extra["colab"])
    for entry in config.nav:
        for title in entry:
            entry[title] = generated.get(title, entry[title])
    return config


def on_files(files: Any, config: Any) -> Any:
    """Adds the generated pages and pictures."""
    from mkdocs.structure.files import File  # only mkdocs calls this

    made: dict[str, str | bytes] = dict(pages())
    for name, each in notebooks.pages(config.extra["colab"]).items():
        made[f"notebooks/{name}.md"] = each.text
        made |= {f"notebooks/{picture}": content for picture, content in each.pictures.items()}
    made |= {path: source.read_bytes() for path, source in PICTURES.items()}
    for path, content in made.items():
        files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """VERSION becomes fljax's."""
    return markdown.replace("{VERSION}", f"{{{__version__}}}")


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    """Formulas, which the extension ``arithmatex`` marks, as MathML: no script is needed to show them."""
    from latex2mathml.converter import convert

    def formula(match: re.Match[str]) -> str:
        return convert(unescape(match[3]), display="block" if match[1] == "div" else "inline")

    return re.sub(r'<(div|span) class="arithmatex">\\(\(|\[)(.*?)\\[)\]]</\1>', formula, html, flags=re.DOTALL)
