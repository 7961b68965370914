"""Which files of a table are of given turns alone, by the statistics of its log."""

from typing import Any

import pyarrow as pa

from ackline.tables.lost_files import files_of


class Version:
    """A version of a table whose log has these bounds of epoch and turn: (path, first, last)."""

    def __init__(self, *files: tuple[str, tuple[int, int] | None, tuple[int, int] | None]) -> None:
        self._files = files

    def get_add_actions(self, flatten: bool) -> pa.Table:
        rows: list[dict[str, Any]] = []
        for path, first, last in self._files:
            (e0, t0), (e1, t1) = first or (None, None), last or (None, None)
            rows.append({"path": path, "min.epoch": e0, "min.turn": t0, "max.epoch": e1, "max.turn": t1})
        return pa.Table.from_pylist(rows)


def test_a_file_that_a_compaction_has_mixed_and_one_without_statistics_are_of_no_turn() -> None:
    """Rows of a turn that counts would go with the file of a void turn."""
    version: Any = Version(
        ("own", (0, 3), (0, 3)),
        ("mixed", (0, 3), (0, 4)),
        ("of two epochs", (0, 3), (1, 3)),
        ("without statistics", None, None),
        ("of another turn", (0, 4), (0, 4)),
    )
    assert [file["path"] for file in files_of(version, {(0, 3)})] == ["own"]
