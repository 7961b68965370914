"""The columns of an output table that does not exist yet: the tasks of a turn infer them from the rows that they stage.

The tasks share a series of files in the turn's staging folder: number 1, 2, 3 …, each with all columns of the one
before it and at least one more. A file is created exclusively and never changed. A task that has a field without a
column creates the next number; if another task has created it, the first task goes on from the columns in there. So any
two tasks agree on the type of a column. The name of a staged file has the number that the task knew. The driver reads
the columns of a turn from the highest of these numbers.
"""

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ackline.output_columns import Columns, infer_columns
from ackline.spark.shared_folder import SharedFolder


class InferredColumns:
    """The columns of one table as one task knows them. `begun` are those that the turn begins from, which have number
    0: rows that wait for records in flight have them."""

    def __init__(self, folder: str, table: str, begun: Columns) -> None:
        self._folder, self._table = folder, table
        self.columns, self.number = begun, 0

    def add_fields(self, rows: Sequence[Mapping[Any, Any]]) -> Columns:
        """Returns the columns after each field of the rows without a column has got one, unless it can't be a column.
        Raises OSError."""
        while new := infer_columns(rows, self.columns):
            number = self.number + 1
            content = json.dumps({**self.columns, **new}).encode()
            # Of all tasks the first decides. The loop then adds what its columns lack, until these rows bring no more.
            self.columns = json.loads(SharedFolder(self._folder).create_first(_file(self._table, number), content))
            self.number = number
        return self.columns


def staged_path(output: int, number: int) -> str:
    """Returns the name of a new staged file whose rows have the columns of a number; 0 for an output whose columns are
    not inferred."""
    return f"{output}-{number}-{uuid.uuid4()}.parquet"


def columns_of_staged(folder: str, table: str, begun: Columns, paths: Iterable[str]) -> Columns:
    """Returns the columns that the staged files of a table have together. `paths` are their names. Raises OSError."""
    number = max(int(path.split("-")[1]) for path in paths)
    if not number:
        return begun
    content = SharedFolder(folder).read(_file(table, number))
    if content is None:
        raise FileNotFoundError(f"{_file(table, number)} was removed")
    columns: Columns = json.loads(content)
    return columns


def _file(table: str, number: int) -> str:
    return f"columns-{uuid.uuid5(uuid.NAMESPACE_URL, table)}-{number}.json"
