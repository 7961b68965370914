"""What a task checks before its first record: that it shares the root, and at most once that no other has begun."""

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ackline.delta.folder import Folder
from ackline.errors import ConfigError, FatalError
from ackline.ledger.turns import LIVE, TurnId
from ackline.spark import job as spark_job
from ackline.worker.settings import Place, open_task_folder, remove_task_folders
from tests.worker.task_lab import TaskLab

TURN = TurnId("orders", LIVE, 0, 7)


def files(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def test_i7_a_part_starts_once_whatever_attempt_spark_reports(tmp_path: Path) -> None:
    """A stage that Spark submits anew begins at attempt 0."""
    with open_task_folder(str(tmp_path / "outcomes"), TURN, once=True) as folder:
        folder.check(0)
        folder.check(1)
        with pytest.raises(FatalError, match="Spark tried a task again under at_most_once"):
            folder.check(0)
    # The markers stay until the turn is settled: the driver may have died.
    assert files(tmp_path) == [f".tasks/{LIVE}-0-7/part-{part}" for part in (0, 1)]


def test_at_least_once_a_part_may_start_again_and_nothing_is_left(tmp_path: Path) -> None:
    with open_task_folder(str(tmp_path / "outcomes"), TURN, once=False) as folder:
        folder.check(0)
        folder.check(0)
    assert files(tmp_path) == []


def test_s50_a_job_whose_folder_is_open_writes_nothing_before_spark_begins(
    tasks: TaskLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What fails between the start marker and Spark costs the range of the turn. So replay opens the folder before."""

    class Session:
        sparkContext = SimpleNamespace(  # noqa: N815 - Spark's name
            master="local[2]", setJobGroup=lambda *_, **__: None, setLocalProperty=lambda *_: None
        )

    spark: Any = Session()
    seen: list[Any] = []

    def collect(*arguments: Any) -> list[Any]:
        seen.append((arguments[3], files(tmp_path)))
        return []

    monkeypatch.setattr(spark_job, "_collect", collect)
    job = tasks.job("ack", {tasks.put(b"{}"): (0, 1)}, once=True)
    with open_task_folder(tasks.table.uri, job.target.turn, once=True) as folder:
        before = files(tmp_path)
        spark_job.run_replay(spark, replace(job, folder=folder))
    assert seen == [(folder, before)]


@pytest.mark.parametrize("once", [True, False])
def test_a_task_that_does_not_see_what_the_driver_wrote_hands_nothing_out(tmp_path: Path, once: bool) -> None:
    with open_task_folder(str(tmp_path / "outcomes"), TURN, once=once) as folder:
        Path(folder.uri, folder.token).unlink()  # as on a machine that has another folder at this path
        with pytest.raises(ConfigError, match="executors and driver do not share ACKLINE_AUDIT"):
            folder.check(0)
    assert files(tmp_path) == []


def test_i7_a_task_of_a_turn_that_another_run_has_settled_hands_nothing_out(tmp_path: Path) -> None:
    """Its marker is gone with the folder, and so is its token: a part that was started before can't start again."""
    table = str(tmp_path / "outcomes")
    with open_task_folder(table, TURN, once=True) as folder:
        folder.check(0)
        remove_task_folders(table, TURN)
        with pytest.raises(ConfigError, match="another run has settled the turn"):
            folder.check(0)
    assert not Path(folder.uri).exists()


def test_i7_a_task_whose_turn_is_settled_between_its_two_looks_hands_nothing_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An object store has no folder whose absence refuses the marker: only the second look for the token does."""
    create = Folder.create_exclusively

    def settled_meanwhile(self: Folder, name: str) -> bool:
        self.remove(folder.token)
        return create(self, name)

    with open_task_folder(str(tmp_path / "outcomes"), TURN, once=True) as folder:
        monkeypatch.setattr(Folder, "create_exclusively", settled_meanwhile)
        with pytest.raises(ConfigError, match="another run has settled the turn"):
            folder.check(0)


def test_i7_markers_stay_while_a_token_can_not_be_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that is still running could otherwise begin a part again: it would find its token, and no marker."""
    table, remove = str(tmp_path / "outcomes"), Folder.remove
    with open_task_folder(table, TURN, once=True) as folder:
        folder.check(0)
        with monkeypatch.context() as patched:
            patched.setattr(Folder, "remove", lambda self, name: None if name == folder.token else remove(self, name))
            remove_task_folders(table, TURN)
        with pytest.raises(FatalError, match="Spark tried a task again"):
            folder.check(0)


def test_a_folder_that_can_not_be_listed_stops_no_settlement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Folder) -> list[str]:
        raise OSError("stale")

    monkeypatch.setattr(Folder, "names", refuse)
    remove_task_folders(str(tmp_path / "outcomes"), TURN)


def test_a_folder_that_another_run_removes_before_the_token_is_in_it_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At least once two drivers of a turn share its folder, and the first one to end removes it if it is empty."""
    make, others = Folder.make, [1, 2, 3]

    def make_and_lose(folder: Folder) -> None:
        make(folder)
        if others:
            others.pop()
            Folder(folder.uri).remove_if_empty()

    monkeypatch.setattr(Folder, "make", make_and_lose)
    with open_task_folder(str(tmp_path / "outcomes"), TURN, once=False) as folder:
        folder.check(0)
    assert (files(tmp_path), others) == ([], [])


def test_a_folder_that_never_stays_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Folder, "make", lambda _: None)
    task_folder = open_task_folder(str(tmp_path / "outcomes"), TURN, once=False)
    with pytest.raises(FatalError, match="No such file"), task_folder:
        pass


def test_the_token_is_removed_before_the_markers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the two, a task could otherwise create the marker of a part that was started before."""
    table, removed, remove = str(tmp_path / "outcomes"), list[str](), Folder.remove

    def noted(folder: Folder, name: str) -> None:
        removed.append(name)
        remove(folder, name)

    monkeypatch.setattr(Folder, "remove", noted)
    with open_task_folder(table, TURN, once=True) as folder:
        for part in range(12):
            folder.check(part)
        remove_task_folders(table, TURN)
        assert removed[0] == folder.token
        assert len(removed) == 13


def test_settling_removes_this_turn_and_what_earlier_ones_left_and_nothing_else(tmp_path: Path) -> None:
    table = str(tmp_path / "outcomes")
    kept = [TURN._replace(n=8), TURN._replace(epoch=1, n=1), TURN._replace(lane="backfill-1", n=1)]
    for turn in (TURN, TURN._replace(n=6), *kept):
        with open_task_folder(table, turn, once=True) as folder:
            folder.check(0)
    remove_task_folders(table, TURN)
    folders = {path.split("/")[1] for path in files(tmp_path)}
    assert folders == {f"{turn.lane}-{turn.epoch}-{turn.n}" for turn in kept}


def test_removing_where_nothing_was_left_is_no_error(tmp_path: Path) -> None:
    remove_task_folders(str(tmp_path / "outcomes"), TURN)
    assert list(tmp_path.iterdir()) == []


def test_a_root_that_cannot_be_written_names_the_right_that_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Folder, "create_exclusively", refuse)
    with (
        open_task_folder(str(tmp_path / "outcomes"), TURN, once=True) as folder,
        pytest.raises(ConfigError, match=r"the executor on \S+ can't use .*Permission denied"),
    ):
        folder.check(0)


def test_a_task_works_in_the_place_of_its_client_and_not_in_another_folder_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine behind a tunnel may have a folder of the same path."""
    client, server = tmp_path / "client", tmp_path / "server"
    client.mkdir()
    server.mkdir()
    monkeypatch.setattr(sys, "path", ["/zip", "/handlers"])
    monkeypatch.chdir(client)
    place = Place.of_this_process(["/handlers", "/more"])
    monkeypatch.chdir(server)
    boot, device, number = place.number
    replace(place, number=(boot, device, number + 1)).enter()
    replace(place, number=("another machine of the same image", device, number)).enter()
    replace(place, folder=str(tmp_path / "none")).enter()
    assert (Path.cwd(), sys.path) == (server, ["/zip", "/handlers"])
    for _ in range(2):
        place.enter()
        assert (Path.cwd(), sys.path) == (client, ["/handlers", "/more", "/zip"])
