"""The columns of an output table that does not exist yet: the tasks of a turn infer them from the rows that they stage.

The tasks share a series of files in the turn's staging folder: number 1, 2, 3 …, each with all columns of the one
before it and at least one more. A file is created exclusively and never changed. A task that has a field without a
column creates the file with the next number. If another task has created that file, the task takes over the columns in
it, and tries again with the fields that these lack. So any two tasks agree on the type of a column. The name of a
staged file contains the number of the file with the columns of its rows. The driver reads the columns of a turn from
the file with the highest of these numbers.
"""

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ackline.output_columns import Columns, infer_columns
from ackline.spark.shared_folder import SharedFolder


class InferredColumns:
    """The columns that one task uses for one table, and the number of the file that holds them. `initial` are the
    columns of rows that wait for records in flight, from which the turn begins; they have number 0."""

    def __init__(self, folder: str, table: str, initial: Columns) -> None:
        self._folder, self._table = folder, table
        self.columns, self.number = initial, 0

    def add_fields(self, rows: Sequence[Mapping[Any, Any]]) -> Columns:
        """Adds a column for each field of the rows that has none and can be a column. Returns all columns. Raises
        OSError."""
        while new := infer_columns(rows, self.columns):
            number = self.number + 1
            content = json.dumps({**self.columns, **new}).encode()
            # The task that creates the file first decides. The loop ends once the columns have each field of the rows.
            self.columns = json.loads(SharedFolder(self._folder).create_first(_file(self._table, number), content))
            self.number = number
        return self.columns


def staged_path(output: int, number: int) -> str:
    """Returns the name of a new staged file. `number` is that of the file with the columns of its rows; 0 for columns
    that the turn begins from, and for an output whose columns are not inferred."""
    return f"{output}-{number}-{uuid.uuid4()}.parquet"


def columns_of_staged(folder: str, table: str, initial: Columns, paths: Iterable[str]) -> Columns:
    """Returns the columns that the staged files of a table have together. `paths` are their names. Raises OSError."""
    number = max(int(path.split("-")[1]) for path in paths)
    if not number:
        return initial
    content = SharedFolder(folder).read(_file(table, number))
    if content is None:
        raise FileNotFoundError(f"{_file(table, number)} was removed")
    columns: Columns = json.loads(content)
    return columns


def _file(table: str, number: int) -> str:
    return f"columns-{uuid.uuid5(uuid.NAMESPACE_URL, table)}-{number}.json"
