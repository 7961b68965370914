"""`ackline audit` without a row says why, as far as the tables show it."""

import pytest
from typer.testing import CliRunner

from ackline.cli.app import app
from ackline.tables.store import LedgerStore
from tests.audit.story import begin_story


def audit(*options: str) -> tuple[str, str]:
    """What the command prints on standard output and on standard error."""
    done = CliRunner().invoke(app, ["audit", "orders", *options], catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout.strip(), done.stderr.strip()


@pytest.fixture(autouse=True)
def story(store: LedgerStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lane that has read orders[0] up to 30, with the error class HTTPError."""
    monkeypatch.setattr("ackline.cli.audit.pipeline_named", lambda _: None)
    monkeypatch.setenv("ACKLINE_AUDIT", store.root)
    begin_story(store)


@pytest.mark.parametrize(("options", "reason"), [
    (
        ["--partition", "0", "--offsets", "5000"],
        "No rows: the lane live has read orders[0] up to 30, and no turn has read offset 5000 yet.",
    ),
    (["--topic", "ordres"], "No rows: the lane live has no such partition; did you mean orders?."),
    (["--partition", "9", "--offsets", "1"], "No rows: the lane live has no such partition."),
    (
        ["--error-class", "HTTPErrors"],
        "No rows: no row has the error class HTTPErrors; did you mean HTTPError? There are HTTPError.",
    ),
    (["--error-class", "Zebra"], "No rows: no row has the error class Zebra. There are HTTPError."),
    (["--partition", "0", "--offsets", "13"], "No rows."),
    (["--error-class", "HTTPError", "--turn", "99"], "No rows."),
])  # fmt: skip
def test_no_rows_are_explained(options: list[str], reason: str) -> None:
    out, errors = audit(*options)
    assert (out, errors) == (reason.replace("?.", "?"), "")
    rows, errors = audit(*options, "--json")
    assert rows == "[]"
    explanation = reason.replace("?.", "?").removeprefix("No rows")
    assert errors == ("" if explanation == "." else f"ackline: no rows{explanation}")


def test_rows_that_are_there_need_no_explanation() -> None:
    out, errors = audit("--offsets", "16")
    assert "HTTPError" in out
    assert ("No rows" in out, errors) == (False, "")


def test_a_lane_that_has_not_run_says_so(store: LedgerStore, monkeypatch: pytest.MonkeyPatch) -> None:
    done = CliRunner().invoke(app, ["audit", "shop"], catch_exceptions=False)
    assert done.stdout.strip() == "No rows: the lane live of shop has not run yet."
