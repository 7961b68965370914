"""Random trees of all that handlers may do leave what they left before.

`drawn.txt` has a digest of what each tree left: outcomes, figures, rows, and what the handlers got. These are what the
trees left as well when each tuple was an object and a row of its own. Digests change only with a rule: then say in the
commit which one.
"""

import json
from hashlib import blake2b
from pathlib import Path

import pytest

from tests.trees.drawn import left_by
from tests.worker.task_lab import TaskLab

DIGESTS = (Path(__file__).parent / "drawn.txt").read_text().split()


def digest(number: int, lab: TaskLab, folder: Path, overlapping: bool = False) -> str:
    left = json.dumps(left_by(number, lab, folder, overlapping), sort_keys=True)
    return blake2b(left.encode(), digest_size=6).hexdigest()


def changed(numbers: range, lab: TaskLab, folder: Path) -> list[int]:
    """The numbers of the trees that leave something else than before."""
    return [number for number in numbers if digest(number, lab, folder) != DIGESTS[number]]


def test_s60_drawn_trees_leave_what_they_left_before(tasks: TaskLab, tmp_path: Path) -> None:
    assert changed(range(60), tasks, tmp_path) == []


@pytest.mark.deep
@pytest.mark.parametrize("first", range(60, len(DIGESTS), 120))
def test_s60_each_drawn_tree_leaves_what_it_left_before(tasks: TaskLab, tmp_path: Path, first: int) -> None:
    assert changed(range(first, first + 120), tasks, tmp_path) == []
