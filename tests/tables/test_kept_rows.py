"""Which columns the files of kept rows have, where the staged files of a turn have different ones."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ackline.pipeline.output_columns import STAGED_ANCHORS
from ackline.pipeline.outputs import StagedFile, StagedTable
from ackline.tables.files import DataFileWriter, Storage
from ackline.tables.kept_rows import keep_rows
from ackline.tables.publish import AttemptOutcomes

ANCHOR = {"topic": "orders", "partition": 0, "offset": 3, "attempt": 1}
COLUMNS = {"id": "long", "note": "string", "price": "double"}


def staged(root: Path, path: str, *columns: pa.Field, **values: Any) -> StagedFile:
    schema = pa.schema([STAGED_ANCHORS, *columns])
    writer = DataFileWriter(Storage(str(root)), path, schema)
    writer.write(pa.Table.from_pylist([{"_anchors": [ANCHOR], **values}], schema=schema))
    return StagedFile(0, path, writer.finish().size, 1)


def test_rows_of_files_with_fewer_columns_than_their_table_are_kept_with_nulls(tmp_path: Path) -> None:
    id_, note = pa.field("id", pa.int64()), pa.field("note", pa.string())
    files = [
        staged(tmp_path, "turn/0-1-a.parquet", id_, id=1),
        staged(tmp_path, "turn/0-2-b.parquet", id_, note, id=2, note="late"),
    ]
    outcomes = pa.table(
        {**{name: [value] for name, value in ANCHOR.items()}, "end_offset": [None], "outcome": ["in_flight"],
         "answer": [None]},
        schema=pa.schema(
            [("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64()), ("attempt", pa.int32()),
             ("end_offset", pa.int64()), ("outcome", pa.string()), ("answer", pa.string())]
        ),
    )  # fmt: skip
    result = keep_rows(
        Storage(str(tmp_path)),
        "turn",
        (),
        [StagedTable("t", COLUMNS, (), files)],
        AttemptOutcomes.of(outcomes.to_batches()),
    )
    [kept] = result.kept
    [file] = kept.files
    assert kept.columns == COLUMNS
    rows = pq.read_table(tmp_path / file.path).drop_columns(["_anchors"]).to_pylist()
    assert rows == [{"id": 1, "note": None, "price": None}, {"id": 2, "note": "late", "price": None}]
