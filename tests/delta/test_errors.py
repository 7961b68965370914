"""What delta-rs, Arrow, obstore and the file system raise becomes one of Ackline's errors, in one place."""

import ast
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from obstore.exceptions import GenericError

import ackline.errors
from ackline.delta.errors import cause_of, folder_errors, unusable, user_name
from ackline.delta.object_store import use_options
from ackline.errors import AcklineError, ConfigError, FatalError, TransientError
from ackline.outputs.output_table import OutputTable
from ackline.tables.audit_table import AuditTable

ROOT, CANARY = "s3://audit/lake", "c4nary-t0ken"
PANIC: type[BaseException] = type("PanicException", (BaseException,), {"__module__": "pyo3_runtime"})


@pytest.fixture(autouse=True)
def _no_options_of_others() -> Iterator[None]:
    use_options({})
    yield
    use_options(None)


def test_an_error_of_the_store_quotes_no_secret() -> None:
    use_options({"aws_session_token": CANARY, "aws_region": "eu-west-1"})
    assert cause_of(OSError(f"\x1b[31mInvalidToken\x1b[0m\n <Token>{CANARY}</Token> eu-west-1"), ROOT) == (
        "InvalidToken <Token>***</Token> eu-west-1"
    )


@pytest.mark.parametrize(
    ("text", "outage"),
    [
        ("Generic S3 error\n \x1b[31m↳\x1b[0m Error performing GET http://h/b/k in 2.1s, after 10 retries", True),
        ("When reading information for key 'k': AWS Error NETWORK_CONNECTION during HeadObject operation", True),
        ("When uploading object with key 'k': AWS Error SLOW_DOWN during PutObject operation: no", True),
        ("AWS Error UNKNOWN (HTTP status 503) during HeadObject operation: No response body.", True),
        ("AWS Error ACCESS_DENIED during PutObject operation: no", False),
        ("AWS Error NO_SUCH_BUCKET during PutObject operation: no", False),
        ("The operation lacked the necessary privileges - Server returned non-2xx status code 403 Forbidden", False),
        ("Invalid table log: 00000000000000000503.json", False),
    ],
)
def test_a_store_that_does_not_answer_is_transient_and_one_that_refuses_is_fatal(text: str, outage: bool) -> None:
    error = unusable("the table plans", OSError(text), ROOT)
    assert isinstance(error, TransientError if outage else FatalError)
    assert ("run this again when it does" in str(error)) == outage
    assert isinstance(unusable("the table plans", OSError(text), "/mnt/audit"), FatalError)


@pytest.mark.parametrize(
    "denied", [PermissionError(13, "Permission denied"), OSError("Generic LocalFileSystem error: … (os error 13)")]
)
@pytest.mark.parametrize("foreign", [False, True])
def test_a_folder_that_this_user_may_not_use_is_named_with_its_owner_and_the_command_that_gives_it_back(
    denied: OSError, foreign: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    me, folder = user_name(os.geteuid()), tmp_path / "my tables"
    folder.mkdir()
    if foreign:
        monkeypatch.setattr(os, "geteuid", lambda: 3_999_999)
    text = str(unusable("the table plans", denied, str(folder / "plans")))
    if foreign:
        assert f"{folder} belongs to {me}, and this process runs as #3999999: run it as {me}" in text
    assert f"`sudo chown -R {'3999999' if foreign else me} '{folder}'`" in text


@pytest.mark.parametrize(
    "raised",
    [Exception("Kernel error"), DeltaError("no"), OSError(28, "No space left"), pa.ArrowInvalid("magic"), PANIC("no"),
     GenericError("no"), NotImplementedError("deletion vectors"), ValueError("a feature")],
)  # fmt: skip
def test_what_a_library_raises_becomes_an_error_that_names_the_table(raised: BaseException, tmp_path: Path) -> None:
    table = AuditTable(f"{tmp_path}/orders", "plans")
    with pytest.raises(FatalError, match=r"the table plans at .*/orders/plans can't be used") as caught, table.errors():
        raise raised
    assert caught.value.__cause__ is raised
    with pytest.raises(FatalError, match=r"the folder .* below ACKLINE_AUDIT can't be used"), folder_errors("/mnt/x"):
        raise raised


@pytest.mark.parametrize("raised", [KeyError("a bug"), AssertionError("a bug"), KeyboardInterrupt(), ConfigError("no")])
def test_a_bug_an_end_and_an_error_of_ackline_stay_what_they_are(raised: BaseException) -> None:
    with pytest.raises(type(raised)) as caught, AuditTable("/mnt/audit", "plans").errors():
        raise raised
    assert caught.value is raised


def test_no_traceback_shows_the_text_of_an_object_store() -> None:
    with pytest.raises(FatalError) as caught, folder_errors(ROOT):
        raise OSError(f"InvalidToken {CANARY}")
    assert caught.value.__suppress_context__


def test_each_operation_on_a_table_ends_with_an_error_of_ackline(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A bare exception of delta-rs would otherwise end `ackline void --give-up` before it gives the rows up."""
    AuditTable(str(tmp_path), "plans").create()
    table = AuditTable(str(tmp_path), "plans")
    output = OutputTable(f"{tmp_path}/out", {"n": "long"})
    output.create()

    def fails(*_: Any, **__: Any) -> Any:
        raise Exception("Kernel error: a bare exception")

    with monkeypatch.context() as patch:
        for name in ("__init__", "update_incremental", "create_checkpoint", "schema", "metadata"):
            patch.setattr(DeltaTable, name, fails)
        calls = (table.open, table.checkpoint, lambda: table.read({"turn": 1}), output.columns,
                 lambda: OutputTable(f"{tmp_path}/new", {}).create())  # fmt: skip
        for call in calls:
            with pytest.raises(AcklineError, match="a bare exception"):
                call()
    assert table.open() is not None


def test_no_other_module_catches_what_the_libraries_raise() -> None:
    """But for an answer that it needs: a rival's commit, a file that is missing, a folder that can't be synced."""
    wide = {"DeltaError", "OSError", "ArrowException", "ArrowInvalid", "BaseError", "Exception"}
    caught = [
        f"{path.name}:{node.lineno}"
        for room in ("delta", "tables", "audit", "outputs")
        for path in sorted(Path(ackline.errors.__file__).parent.glob(f"{room}/*.py"))
        if path.name not in ("errors.py", "folder.py", "sql.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ExceptHandler) and node.type is not None
        for name in ast.walk(node.type)
        if getattr(name, "id", getattr(name, "attr", None)) in wide
    ]
    assert caught == []


@pytest.mark.parametrize(
    "raised",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        DeltaError("Generic LocalFileSystem error: Unable to write data to file /tmp/x: No space left on device"),
    ],
)
def test_a_full_disk_of_temporary_files_is_not_called_that_of_the_table(
    raised: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An entry of the log is made in a temporary folder first."""

    def full(*_: object) -> None:
        raise raised

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("ackline.delta.append.write_entry", full)
    with pytest.raises(FatalError) as caught:
        AuditTable(str(tmp_path), "plans").append([], "a", 1)
    assert str(caught.value) == (
        f"the folder for temporary files can't be written (No space left on device): free some space in {tmp_path}, or "
        f"name another folder in TMPDIR"
    )
