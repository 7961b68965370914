"""A month of turns with daily maintenance stays within the bound that docs/settings.md states."""

import re
from pathlib import Path

import pytest

from tests.e2e.commands import ROOT
from tests.soak.month import Footprint, most, simulate

RECORDS = 20


STATED = re.compile(r"at most (\d+) \+ (\d+)·N files and (\d+) MiB \+ N·\(([\d.]+) MiB \+ ([\d.]+) KiB·R\)")


def test_the_settings_state_no_less_than_the_bound() -> None:
    text = " ".join((ROOT / "docs" / "settings.md").read_text().split())
    stated = STATED.search(text)
    assert stated is not None
    files, files_a_turn, size, size_a_turn, size_a_record = map(float, stated.groups())
    for turns in (1, 24, 144, 1_440):
        for records in (0, 1_000, 100_000):
            bound = most(30, turns, records)
            assert bound[0] <= files + files_a_turn * turns
            mib = size + turns * (size_a_turn + size_a_record / 1_024 * records)
            assert bound[1] <= mib * 2**20


def within(found: Footprint, days: int, turns: int) -> None:
    """Checks the bound. One record is in flight at the end, so one staged file waits for its answer."""
    files, size = most(days, turns, RECORDS)
    assert found.files <= files, found
    assert found.size <= size, found
    assert found.staged <= 1, found


@pytest.mark.slow
def test_a_month_of_turns_occupies_what_the_settings_state_and_the_second_half_adds_days_and_no_turns(
    tmp_path: Path,
) -> None:
    month = simulate(tmp_path / "month", days=30, turns=2, records=RECORDS)
    within(month, 30, 2)
    half = simulate(tmp_path / "half", days=15, turns=2, records=RECORDS)
    within(half, 15, 2)
    # A day leaves one file in each table of the ledger, and the entries of the log of the output table.
    assert month.data - half.data <= 15 * 4, (half, month)
    assert month.log - half.log <= 15 * (2 + 3 + 1), (half, month)


@pytest.mark.deep
def test_the_bound_holds_for_more_turns_a_day_too(tmp_path: Path) -> None:
    within(simulate(tmp_path, days=9, turns=5, records=RECORDS), 9, 5)
