"""The ceiling: how many lines each room and all tests may have.

What is new pays with what goes. A number is lowered to what stands whenever work on a room ends. Raising one is a line
in the commit that says what users get for it.
"""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "include" / "ackline"
CEILINGS = {
    "the root": 1_428,
    "ledger": 4_688,
    "pipeline": 4_099,
    "forms": 1_032,
    "kafka": 3_274,
    "delta": 2_982,
    "tables": 2_614,
    "audit": 1_196,
    "worker": 5_136,
    "trees": 4_562,
    "spark": 3_126,
    "lane": 3_274,
    "outputs": 2_921,
    "in_flight": 513,
    "dead_letters": 458,
    "steps": 1_741,
    "actions": 2_006,
    "answers": 1_888,
    "backfill": 1_676,
    "airflow": 2_536,
    "ui": 2_526,
    "local": 2_262,
    "cli": 4_446,
    "verify": 3_053,
}
"""Lines of Python by room, lowest room first."""
PACKAGE_CEILING = 63_437
TESTS_CEILING = 78_533


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
