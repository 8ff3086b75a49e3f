"""Functions that share keywords take those that they show, and no others."""

import inspect

import pytest

from fljax.data.own import benchmarks, files
from fljax.data.sources import hubs
from fljax.models import networks

SHOWING = {
    name: function
    for module in (benchmarks, files, hubs, networks)
    for name, function in vars(module).items()
    if inspect.isfunction(function) and "__signature__" in vars(function)
}
SHARED = {
    name
    for function in SHOWING.values()
    for name, parameter in inspect.signature(function).parameters.items()
    if parameter.kind is parameter.KEYWORD_ONLY
}


def test_functions_were_found():
    assert {"table", "table_folder", "arrays", "leaf", "cnn"} <= SHOWING.keys()
    assert {"test_file", "client", "separator"} <= SHARED


@pytest.mark.parametrize("name", SHOWING)
def test_another_functions_keywords_are_refused(name):
    function = SHOWING[name]
    parameters = inspect.signature(function).parameters
    first = [p.name for p in parameters.values() if p.kind is not p.KEYWORD_ONLY and p.default is p.empty]
    required = [p.name for p in parameters.values() if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
    for other in SHARED - parameters.keys():
        with pytest.raises(TypeError, match=f"unexpected keyword argument '{other}'"):
            function(*[None] * len(first), **dict.fromkeys(required), **{other: None})
