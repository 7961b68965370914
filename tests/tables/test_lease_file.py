"""The files of a lease and of a run that has stopped, on a disk and in an object store: replaced whole, absent without
an error, beside the tables."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ackline.errors import AcklineError, GroupMoved, TransientError, TurnVoided
from ackline.lane.lease import TurnLease, WhenHeld
from ackline.ledger.turns import TurnId
from ackline.pipeline.folder import lane_folder
from ackline.tables.layout import (
    LEASE_NAME,
    LeaseFile,
    StoppedFile,
    holder_of,
    lanes_of,
    noted_stop,
    stopped_run,
)
from ackline.tables.lease import HolderState, Lease
from tests.tables.roots import ON_BOTH


@ON_BOTH
def test_a_file_is_written_replaced_and_removed(root: str) -> None:
    file = LeaseFile(lane_folder(root, "orders", "live"))
    assert file.read() is None
    file.remove()
    for content in (b"first", b"the second, which is longer", b"3"):
        file.write(content)
        assert LeaseFile(file.folder).read() == content
    file.remove()
    assert file.read() is None


@ON_BOTH
def test_a_file_has_the_time_of_its_last_write(root: str) -> None:
    file = LeaseFile(lane_folder(root, "orders", "live"))
    assert file.written_at() is None
    before = datetime.now(UTC)
    file.write(b"x")
    written_at = file.written_at()
    assert written_at is not None
    second = timedelta(seconds=1)  # an object store rounds
    assert before - second <= written_at <= datetime.now(UTC) + second


def test_a_lease_is_held_renewed_taken_over_and_given_back(root: str) -> None:
    """Another process finds the holder and whether it has lapsed."""
    file, turn = LeaseFile(lane_folder(root, "orders", "live")), TurnId("orders", "live", 0, 7)
    renewals: list[Callable[[], bool]] = []

    @contextmanager
    def renewing(renew: Callable[[], bool]) -> Iterator[None]:
        renewals.append(renew)
        yield

    first, second = (
        TurnLease(file, run, when_held=WhenHeld.REFUSE, sleep=lambda _: None, renewing=renewing)
        for run in ("run-1", "run-2")
    )
    now = datetime.now(UTC)
    with first.held(turn):
        holder = holder_of(file, turn, now)
        assert holder is not None
        assert (holder.lease.run_id, holder.state) == ("run-1", HolderState.ACTIVE)
        with pytest.raises(TransientError, match=r"is being replayed by run run-1"), second.held(turn):
            pass
        assert renewals[0]()
        assert Lease.decode(file.read() or b"").renewals == 1
        later = holder_of(file, turn, now + timedelta(seconds=100))
        assert later is not None
        assert later.state is HolderState.LAPSED
        with replace(second, when_held=WhenHeld.TAKE_OVER).held(turn):
            taken = holder_of(file, turn, now)
            assert taken is not None
            assert taken.lease.run_id == "run-2"
            assert not renewals[0](), "a run whose lease was taken over must not fight for it"
    assert file.read() is None


@ON_BOTH
def test_each_lane_has_a_file_of_its_own_which_no_reader_takes_for_a_lane(root: str) -> None:
    live, backfill = (LeaseFile(lane_folder(root, "orders", lane)) for lane in ("live", "backfill-1"))
    live.write(b"live")
    backfill.write(b"backfill")
    assert (live.read(), backfill.read()) == (b"live", b"backfill")
    assert lanes_of(root, "orders") == []


def test_no_scratch_file_is_left(root: str) -> None:
    file = LeaseFile(lane_folder(root, "orders", "live"))
    file.write(b"x")
    assert [path.name for path in (Path(root) / "orders").iterdir()] == [LEASE_NAME]


def test_a_folder_that_cannot_be_written_is_an_oserror(root: str) -> None:
    Path(root).write_text("a file in place of the folder")
    file = LeaseFile(f"{root}/orders")
    with pytest.raises(OSError, match=r"Not a directory|Cannot create"):
        file.write(b"x")


def stop(folder: str, error: AcklineError, at: datetime) -> None:
    """A run that stops with an error, which comes through."""
    with pytest.raises(type(error)), noted_stop(folder, "orders", "run-7", lambda: at):
        raise error


def test_i18_the_error_with_which_a_run_stops_is_noted_until_a_turn_is_settled(root: str) -> None:
    folder, now = lane_folder(root, "orders", "live"), datetime.now(UTC)
    StoppedFile(folder).write(b"{}")  # any file beside the tables, for the folder to be there
    assert stopped_run(folder, None) is None, "content that is no note is none"
    stop(folder, GroupMoved("another client moved it; `ackline skip orders --to 7`, or `ackline other`"), now)
    note = stopped_run(folder, now - timedelta(minutes=10))
    assert note is not None
    assert (note.reason, note.run_id, note.lasting, note.at) == ("GroupMoved", "run-7", True, now)
    assert (note.sentence[:20], note.command) == ("another client moved", "ackline skip orders --to 7")
    assert stopped_run(folder, None) == note, "a lane that has never settled a turn"
    assert stopped_run(folder, now + timedelta(seconds=1)) is None
    stop(folder, TransientError("no broker"), now)
    found = stopped_run(folder, now)
    assert found is not None
    assert (found.lasting, found.command) == (False, "ackline doctor orders")


def test_a_turn_that_an_operator_has_closed_stops_no_later_run_and_is_not_noted(root: str) -> None:
    folder, now = lane_folder(root, "orders", "live"), datetime.now(UTC)
    StoppedFile(folder).write(b"")
    stop(folder, TurnVoided("closed as void"), now)
    assert stopped_run(folder, None) is None


def test_a_note_that_can_not_be_written_hides_no_error_and_makes_no_folder(root: str) -> None:
    folder = lane_folder(root, "orders", "live")
    stop(folder, GroupMoved("moved"), datetime.now(UTC))
    assert not Path(folder).exists(), "a mistyped ACKLINE_AUDIT stays empty"
    Path(folder).mkdir(parents=True)
    (Path(folder) / "stopped.json").mkdir()
    stop(folder, GroupMoved("moved"), datetime.now(UTC))
    assert stopped_run(folder, None) is None
