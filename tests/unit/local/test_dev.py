"""`ackline dev wipe` removes the broker of `ackline dev up` and nothing else."""

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ackline.cli.app import app
from ackline.errors import ConfigError
from ackline.local.connection import SAVED, dev_folder
from ackline.local.dev import dev_wipe


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
