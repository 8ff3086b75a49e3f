"""Refusals as data: rows of a call and of words that the sentence of its error has, such as a field and a value."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def refusals(*rows: tuple[Any, ...]) -> pytest.MarkDecorator:
    """Parametrises a test with ``call`` and ``words`` by rows ``(call, word, ...)``."""
    cases = [pytest.param(call, words, id=" ".join(words)) for call, *words in rows]
    return pytest.mark.parametrize(("call", "words"), cases)


def refuses(
    call: Callable[[], object],
    words: str | Iterable[str],
    error: type[Exception] | tuple[type[Exception], ...] = ValueError,
) -> str:
    """The sentence with which the call is refused: a regular expression is found in it, or it has all words."""
    with pytest.raises(error, match=words if isinstance(words, str) else None) as caught:
        call()
    sentence = str(caught.value)
    missing = [] if isinstance(words, str) else [word for word in words if word not in sentence]
    assert not missing, f"expected {missing} in {sentence!r}"
    return sentence
