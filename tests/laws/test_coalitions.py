"""Law 23: a run on some members is the run of a federation that holds only these clients, in double precision."""

from __future__ import annotations

import pytest

from fljax.testing.coalitions import FULL, OTHERS, compare_with_members_alone, equals_its_members_alone
from tests.laws.cases import ALGORITHMS, bench, chosen

pytestmark = pytest.mark.by_case

# Algorithms that draw clients, or rows besides batches, by ids: members with other ids draw others.
DRAWN_BY_ID = ("clusters", "fedala", "fedsoft", "ipfl")
COMPARABLE = [name for name in ALGORITHMS if name not in DRAWN_BY_ID]


@pytest.mark.in_turn
@pytest.mark.parametrize("name", chosen(ALGORITHMS, quick=("scaffold",)))
def test_law_23_the_first_clients_with_drawn_batches_and_cohorts(name: str) -> None:
    equals_its_members_alone(bench(name))


@pytest.mark.parametrize("name", chosen(COMPARABLE, quick=("rank",)))
def test_law_23_other_clients_with_full_batches(name: str) -> None:
    compare_with_members_alone(bench(name), OTHERS, FULL, None)
