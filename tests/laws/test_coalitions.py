"""Law 23: a run on some members is the run of a federation that holds only these clients, in double precision."""

from __future__ import annotations

import pytest

from fljax.testing.coalitions import OTHERS, compare_with_members_alone, equals_its_members_alone
from tests.laws.cases import chosen
from tests.laws.coalition_cases import CASES, DRAWN, whole, without_draws

pytestmark = pytest.mark.by_case


@pytest.mark.in_turn
@pytest.mark.parametrize("name", chosen(CASES, quick=("scaffold",)))
def test_law_23_the_first_clients_with_drawn_batches_and_cohorts(name: str) -> None:
    equals_its_members_alone(whole(name))


@pytest.mark.parametrize("name", chosen([name for name in CASES if name not in DRAWN], quick=("rank",)))
def test_law_23_other_clients_with_full_batches(name: str) -> None:
    case, local = without_draws(name)
    compare_with_members_alone(case, OTHERS, local, None)
