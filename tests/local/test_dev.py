"""`ackline dev wipe` removes the broker of `ackline dev up` and nothing else.

Lines of JSON as records: what is printed can be produced again, and a line that is none is named.
"""

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from ackline.cli.app import app
from ackline.errors import ConfigError
from ackline.local.connection import SAVED, dev_folder
from ackline.local.dev import dev_wipe, parse_records, read_records, record_json
from ackline.local.events import RecordLine


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a folder of tables beside that of a broker, which does not run any more."""
    monkeypatch.setattr("ackline.local.connection.project_root", lambda: tmp_path)
    (tmp_path / ".ackline" / "audit" / "orders").mkdir(parents=True)
    dev = dev_folder()
    (dev / "logs").mkdir(parents=True)
    (dev / "logs" / "segment").write_text("records")
    saved = {"port": 1, "controller_port": 2, "pid": 2**22 + 1, "started": 1}
    (dev / SAVED).write_text(json.dumps(saved))
    return tmp_path


def test_a_broker_that_is_down_is_removed_with_its_topics_and_the_tables_stay(project: Path) -> None:
    assert dev_wipe()
    assert [path.name for path in (project / ".ackline").iterdir()] == ["audit"]
    assert not dev_wipe()


def test_a_folder_that_dev_has_not_made_is_left_as_it_is(project: Path) -> None:
    (dev_folder() / SAVED).unlink()
    with pytest.raises(ConfigError, match="was not made by `ackline dev up`"):
        dev_wipe()
    assert (dev_folder() / "logs" / "segment").read_text() == "records"


def test_a_link_to_another_folder_is_not_followed(project: Path) -> None:
    elsewhere = project / "elsewhere"
    dev_folder().rename(elsewhere)
    dev_folder().symlink_to(elsewhere)
    with pytest.raises(ConfigError, match="so it is left as it is"):
        dev_wipe()
    assert (elsewhere / "logs" / "segment").exists()


def test_the_number_of_a_broker_that_has_ended_may_be_another_process_s_which_goes_on(project: Path) -> None:
    saved = json.loads((dev_folder() / SAVED).read_text())
    (dev_folder() / SAVED).write_text(json.dumps({**saved, "pid": os.getpid()}))
    assert dev_wipe(), "and this process has not been ended"


@pytest.mark.parametrize(
    ("options", "status", "stays"),
    [((), 2, True), (("--dry-run",), 0, True), (("--dry-run", "--yes"), 0, True), (("--yes",), 0, False)],
)
def test_it_names_the_folder_and_removes_it_once_it_is_confirmed(
    options: tuple[str, ...], status: int, stays: bool, project: Path
) -> None:
    shown = CliRunner().invoke(app, ["dev", "wipe", *options])
    ended = 0 if shown.exception is None else getattr(shown.exception, "exit_status", None)
    assert (ended, dev_folder().exists()) == (status, stays)
    assert str(dev_folder()) in shown.stdout


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
