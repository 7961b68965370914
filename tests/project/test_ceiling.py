"""The ceiling: how many lines each room and all tests may have.

What is new pays with what goes. A number is lowered to what stands whenever work on a room ends. Raising one is a line
in the commit that says what users get for it.
"""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "include" / "ackline"
CEILINGS = {
    "the root": 1_423,
    "ledger": 4_363,
    "pipeline": 4_044,
    "forms": 1_032,
    "kafka": 3_084,
    "delta": 2_954,
    "tables": 2_559,
    "audit": 1_196,
    "worker": 5_140,
    "trees": 4_562,
    "spark": 3_112,
    "lane": 3_078,
    "outputs": 2_806,
    "in_flight": 512,
    "dead_letters": 207,
    "steps": 1_706,
    "actions": 1_997,
    "answers": 1_859,
    "backfill": 1_493,
    "airflow": 2_521,
    "ui": 2_514,
    "local": 2_262,
    "cli": 4_403,
    "verify": 2_951,
}
"""Lines of Python by room, lowest room first."""
PACKAGE_CEILING = 61_778
TESTS_CEILING = 74_939


def lines(files: "list[Path]") -> int:
    return sum(len(file.read_text().splitlines()) for file in files)


def files_of(room: str) -> list[Path]:
    return list(PACKAGE.glob("*.py") if room == "the root" else (PACKAGE / room).rglob("*.py"))


def test_each_room_has_a_ceiling() -> None:
    rooms = {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert CEILINGS.keys() == rooms | {"the root"}


@pytest.mark.parametrize("room", CEILINGS)
def test_no_room_grows_beyond_its_ceiling(room: str) -> None:
    assert lines(files_of(room)) <= CEILINGS[room], (
        f"include/ackline/{room} has grown: remove as much as you add, or raise the ceiling in a commit that says what "
        f"users get for it"
    )


def test_package_and_tests_stay_below_their_ceilings() -> None:
    assert lines(list(PACKAGE.rglob("*.py"))) <= PACKAGE_CEILING
    assert lines(list((ROOT / "tests").rglob("*.py"))) <= TESTS_CEILING
