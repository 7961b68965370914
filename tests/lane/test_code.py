"""Which code a turn ran: how a folder is named, with real git repositories, and what plan and settlement store."""

import os
import subprocess
from pathlib import Path

import pytest

from ackline.lane import code
from ackline.lane.code import CODE, code_of_folder, running_code
from ackline.ledger.turns import TurnKind
from tests.support.memory_lane import OK, TP, MemoryLane


def git(folder: Path, *arguments: str) -> str:
    """Returns what git prints, without any setting of this machine."""
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture(autouse=True)
def _nothing_named(monkeypatch: pytest.MonkeyPatch) -> None:
    code_of_folder.cache_clear()
    monkeypatch.delenv(CODE, raising=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of handlers in a project."""
    made = tmp_path / "project" / "include"
    (made / "handlers").mkdir(parents=True)
    (made / "handlers" / "shop.py").write_text("def handle(record): ...\n")
    return made


@pytest.fixture
def committed(folder: Path) -> Path:
    """The same folder, in a repository that has it."""
    git(folder.parent, "init", "-q")
    git(folder.parent, "add", ".")
    git(folder.parent, "commit", "-q", "-m", "a handler")
    return folder


def test_code_without_changes_is_named_by_its_commit(committed: Path) -> None:
    (committed.parent / "notes.txt").write_text("beside the folder of the handlers")
    compiled = committed / "handlers" / "__pycache__"
    compiled.mkdir()
    (compiled / "shop.pyc").write_bytes(b"\0")
    found = code_of_folder(committed)
    assert found == git(committed, "rev-parse", "HEAD")[:12]
    assert len(found) == 12


@pytest.mark.parametrize("changed", ["shop.py", "new.py"])
def test_an_edited_and_a_new_file_make_the_commit_dirty(committed: Path, changed: str) -> None:
    (committed / "handlers" / changed).write_text("def handle(record): raise ValueError\n")
    assert code_of_folder(committed) == f"{git(committed, 'rev-parse', 'HEAD')[:12]}-dirty"


def test_a_folder_that_the_repository_around_it_does_not_have_is_not_named_by_its_commit(committed: Path) -> None:
    installed = committed.parent / "installed"
    installed.mkdir()
    (installed / "shop.py").write_text("")
    assert code_of_folder(installed).startswith("files:")


def test_the_repository_of_a_git_hook_is_not_that_of_the_handlers(
    committed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = git(committed, "rev-parse", "HEAD")[:12]
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    assert code_of_folder(committed) == expected


def test_without_a_repository_it_is_a_hash_of_names_and_contents_of_the_python_files(folder: Path) -> None:
    def named() -> str:
        code_of_folder.cache_clear()
        return code_of_folder(folder)

    first = named()
    assert first.startswith("files:")
    assert len(first) == len("files:") + 12
    (folder / "orders.yaml").write_text("name: orders\n")
    (folder / ".venv").mkdir()
    (folder / ".venv" / "other.py").write_text("")
    assert named() == first
    (folder / "handlers" / "shop.py").write_text("def handle(record): return None\n")
    edited = named()
    (folder / "handlers" / "shop.py").rename(folder / "handlers" / "store.py")
    assert len({first, edited, named()}) == 3


def test_without_git_a_repository_is_a_folder_like_any_other(
    committed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert code_of_folder(committed).startswith("files:")


def test_git_that_hangs_holds_nothing_up(committed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "git"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(code, "GIT_SECONDS", 0.1)
    assert code_of_folder(committed).startswith("files:")


def test_code_that_cant_be_named_has_no_name(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert code_of_folder(tmp_path / "missing") == ""
    monkeypatch.setattr(code, "MOST_BYTES", 5)
    assert code_of_folder(folder) == ""
    code_of_folder.cache_clear()
    monkeypatch.setattr(code, "MOST_FILES", 0)
    assert code_of_folder(folder) == ""


def test_a_process_names_its_code_once_and_a_variable_names_it_first(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACKLINE_PIPELINES", str(folder / "pipelines"))
    first = running_code()
    (folder / "handlers" / "shop.py").write_text("# edited while the process runs, which has imported it\n")
    assert running_code() == first != ""
    monkeypatch.setenv(CODE, "bundle shop\n3f2a" + "0" * 300)
    assert running_code() == ("bundle shop 3f2a" + "0" * 300)[:200]


# ---- what a turn stores


def stored(lane: MemoryLane, n: int) -> tuple[str, str]:
    """The code in the plan and in the settlement of a turn."""
    store, turn = lane.adapters().store, lane.newest().turn._replace(n=n)
    return store.plan(turn).code, store.settlement(turn).code


def test_a_run_stores_its_code_with_plan_and_settlement_and_an_action_stores_none() -> None:
    lane = MemoryLane(OK)
    lane.world.code = "3f2a"
    lane.run()
    lane.perform(TurnKind.PAUSE, {TP: 0})
    assert [stored(lane, n) for n in (1, 2)] == [("3f2a", "3f2a"), ("", "")]
    assert lane.adapters().store.settlement(lane.newest().turn._replace(n=0)).code == ""


def test_the_settlement_has_the_code_that_replayed_and_not_that_of_the_plan_or_of_who_settles() -> None:
    lane = MemoryLane(OK)
    lane.world.code = "planned"
    lane.plan()
    lane.world.code = "replayed"
    lane.replay()
    lane.world.code = "settled"
    lane.settle()
    assert stored(lane, 1) == ("planned", "replayed")
