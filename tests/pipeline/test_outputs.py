"""The key `outputs` of a pipeline file: which tables it may name."""

import pytest
from pydantic import ValidationError

from ackline.pipeline.outputs import OutputBlock, output_folder


@pytest.mark.parametrize(
    ("written", "folder"),
    [
        ("totals", "/audit/shop/outputs/totals"),
        ("file:///lake/totals/", "/lake/totals"),
        ("file:///la ke/to.ta..ls", "/la ke/to.ta..ls"),
        ("s3a://lake/totals", "s3://lake/totals"),
        ("abfss://lake@account.dfs.core.windows.net/totals", "abfss://lake@account.dfs.core.windows.net/totals"),
    ],
)
def test_an_output_table_is_a_name_or_a_uri(written: str, folder: str) -> None:
    block = OutputBlock.model_validate({"from": "source", "table": written})
    assert output_folder("/audit/shop", block.table or "") == folder


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ("file://localhost/lake/totals", "three slashes"),
        ("file://lake/totals", "three slashes"),
        ("file:///", "three slashes"),
        ("s3://lake", "s3://BUCKET/FOLDER"),
        ("s3:///lake/totals", "s3://BUCKET/FOLDER"),
        ("file:///lake//totals", "an empty folder name, `.` or `..`"),
        ("file:///lake/./totals", "an empty folder name, `.` or `..`"),
        ("file:///lake/../totals", "an empty folder name, `.` or `..`"),
        ("s3://lake//totals", "an empty folder name, `.` or `..`"),
        ("file:///la%20ke/totals", "without `\\?`, `#` and `%`"),
    ],
)
def test_a_uri_that_may_name_another_folder_than_it_seems_to_is_refused(written: str, why: str) -> None:
    """Two outputs could write to one table, which takes a turn once: rows would be lost."""
    with pytest.raises(ValidationError, match=why):
        OutputBlock.model_validate({"from": "source", "table": written})
