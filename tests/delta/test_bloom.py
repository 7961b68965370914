"""The Bloom filter of key hashes: it never rules out a number that a row group holds, and rules out most others."""

from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackline.delta.bloom import groups_with
from ackline.delta.files import DataFileWriter
from ackline.delta.folder import Folder
from tests.delta.test_damaged_files import flipped

NAME, COLUMN = "a.parquet", "key_hash64"
EXTREMES = [-(2**63), -1, 0, 1, 2**63 - 1]


def written(root: Path, *groups: pa.Table) -> Folder:
    folder = Folder(str(root))
    writer = DataFileWriter(folder, NAME, groups[0].schema)
    for rows in groups:
        writer.write(rows)
    writer.finish()
    return folder


def hashes(*numbers: int | None) -> pa.Table:
    return pa.table({COLUMN: pa.array(numbers, pa.int64()), "end_offset": pa.nulls(len(numbers), pa.int64())})


@given(st.sets(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=60), st.integers(1, 4))
def test_each_number_is_found_in_its_group_as_duckdb_finds_it(
    tmp_path_factory: pytest.TempPathFactory, numbers: set[int], parts: int
) -> None:
    root, chosen = tmp_path_factory.mktemp("bloom"), [*numbers, *EXTREMES]
    folder = written(root, *(hashes(*part, None) for number in range(parts) if (part := chosen[number::parts])))
    for place, value in enumerate(chosen):
        found = groups_with(folder, NAME, COLUMN, value, ["end_offset"])
        probes = duckdb.execute(f"FROM parquet_bloom_probe('{root / NAME}', '{COLUMN}', {value})").fetchall()
        assert place % parts in found
        assert {group for _, group, excluded in probes if not excluded} <= set(found)


def test_nearly_all_numbers_that_are_not_there_are_ruled_out_with_two_bytes_a_row(tmp_path: Path) -> None:
    numbers = np.random.default_rng(3).integers(-(2**63), 2**63 - 1, 40_000).tolist()
    folder = written(tmp_path, hashes(*numbers[:20_000]))
    found = [groups_with(folder, NAME, COLUMN, number, []) for number in numbers[20_000:22_000]]
    assert sum(map(len, found)) < 100
    chunk = pq.read_metadata(tmp_path / NAME).row_group(0).column(0)
    assert chunk.bloom_filter_length < 20_000 * 2


@pytest.mark.parametrize("schema", [pa.schema({"n": pa.int64()}), pa.schema({COLUMN: pa.string()})])
def test_a_file_without_such_hashes_has_no_filter(tmp_path: Path, schema: pa.Schema) -> None:
    folder = written(tmp_path, pa.Table.from_arrays([pa.array([1]).cast(schema[0].type)], schema=schema))
    assert pq.read_metadata(tmp_path / NAME).row_group(0).column(0).bloom_filter_offset is None
    assert groups_with(folder, NAME, "another", 1, []) == []
    assert groups_with(folder, NAME, "another", 1, schema.names) == [0]


def test_a_group_without_a_hash_counts_by_its_other_columns(tmp_path: Path) -> None:
    ranges = pa.table({COLUMN: pa.nulls(2, pa.int64()), "end_offset": [None, 7]})
    folder = written(tmp_path, hashes(None, None), ranges, hashes(5))
    assert groups_with(folder, NAME, COLUMN, 6, ["end_offset"]) == [1, 2]  # the first rows were no reason for a filter
    pq.write_table(hashes(5), tmp_path / NAME)
    assert groups_with(folder, NAME, COLUMN, 6, ["end_offset"]) == [0]


def test_no_changed_byte_and_no_hole_makes_the_filter_rule_out_what_is_there(tmp_path: Path) -> None:
    folder = written(tmp_path, hashes(*range(40)))
    whole = (tmp_path / NAME).read_bytes()
    chunk = pq.read_metadata(tmp_path / NAME).row_group(0).column(0)
    start, end = chunk.bloom_filter_offset, chunk.bloom_filter_offset + chunk.bloom_filter_length
    damaged = [flipped(whole, at, at + 1) for at in range(start, end)]
    for content in [*damaged, whole[:start] + bytes(end - start) + whole[end:]]:
        (tmp_path / NAME).write_bytes(content)
        assert [n for n in (0, 17, 39) if not groups_with(folder, NAME, COLUMN, n, [])] == []
