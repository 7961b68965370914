"""Lines of JSON as records: what is printed can be produced again, and a line that is none is named."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackline.errors import ConfigError
from ackline.local.dev import RecordLine, parse_records, read_records, record_json

BYTES = st.none() | st.binary(max_size=20) | st.text(max_size=10).map(str.encode)
FILE = Path("x.jsonl")


@pytest.mark.parametrize(
    ("line", "record"),
    [
        ('{"id": 5}', RecordLine(b'{"id": 5}')),
        ("5", RecordLine(b"5")),
        ('{"value": {"id": 5}, "key": "k"}', RecordLine(b'{"id":5}', b"k")),
        ('{"value": "text", "partition": 2}', RecordLine(b"text", partition=2)),
        ('{"value": null, "key": 7}', RecordLine(None, b"7")),
        ('{"value": "", "headers": {"a": "b"}}', RecordLine(b"", headers=(("a", b"b"),))),
        ('{"value": {"base64": "//4="}, "headers": [["a", null]]}', RecordLine(b"\xff\xfe", headers=(("a", None),))),
    ],
)
def test_a_line_is_a_record_or_its_value(line: str, record: RecordLine) -> None:
    assert list(parse_records(["\n", line + "\n", "  "], FILE)) == [record]


@given(BYTES, BYTES, st.lists(st.tuples(st.text(max_size=5), BYTES), max_size=3), st.integers(0, 9))
def test_what_is_printed_can_be_produced_again(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]], partition: int
) -> None:
    line = json.dumps(record_json(partition, 7, None, key, value, tuple(headers)))
    assert list(parse_records([line], FILE)) == [RecordLine(value, key, tuple(headers), partition)]


@pytest.mark.parametrize(
    "line",
    ["{", "hunter2", '{"value": 1, "partition": "hunter2"}', '{"value": 1, "partition": true}',
     '{"value": 1, "headers": ["hunter2"]}', '{"value": 1, "headers": [[5, "hunter2"]]}',
     '{"value": {"base64": "hunter2!"}}', "[" * 100_000],
)  # fmt: skip
def test_a_line_that_is_no_record_is_named_without_its_content(line: str) -> None:
    with pytest.raises(ConfigError, match=r"^x\.jsonl:2: ") as caught:
        list(parse_records(['{"value": 1}', line], FILE))
    assert "hunter2" not in str(caught.value)


def test_a_file_that_can_t_be_read_is_a_configuration_error(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none.jsonl"):
        with pytest.raises(ConfigError, match="can't be read"):
            list(read_records(path))
