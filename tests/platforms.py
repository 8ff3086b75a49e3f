"""Programs in the forms that they have on other platforms, run on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from jax import lax


@contextmanager
def forms_of(platform: str) -> Iterator[None]:
    """Functions traced inside, and not before, have the branches of ``lax.platform_dependent`` on ``platform``."""

    def choose(*arguments: Any, default: Callable[..., Any], **branches: Callable[..., Any]) -> Any:
        return branches.get(platform, default)(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lax, "platform_dependent", choose)
        yield
