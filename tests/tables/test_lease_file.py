"""The files of a lease and of a run that has stopped, on a disk and in an object store: replaced whole, absent without
an error, beside the tables."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ackline.errors import AcklineError, FatalError, GroupMoved, HandedOut, TransientError, TurnVoided
from ackline.lane.lease import TurnLease, WhenHeld
from ackline.ledger.turns import TurnId
from ackline.pipeline.folder import lane_folder
from ackline.tables.layout import (
    LEASE_NAME,
    LaneTables,
    LeaseFile,
    StoppedFile,
    holder_of,
    lanes_of,
    noted_stop,
    stopped_run,
)
from ackline.tables.lease import HolderState, Lease
from ackline.tables.store import LedgerStore
from tests.tables.lane_rows import NOON, plan, settlement
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


def stop(tables: LaneTables, error: AcklineError, at: datetime = NOON) -> None:
    """A run that stops with an error, which comes through."""
    with pytest.raises(type(error)), noted_stop(tables, "run-7", lambda: at):
        raise error


@pytest.fixture
def tables(tmp_path: Path) -> LaneTables:
    """The tables of a lane that has not begun, in a folder that is there."""
    tables = LaneTables(str(tmp_path / "audit"), "orders", "live")
    Path(tables.folder).mkdir(parents=True)
    return tables


def test_i18_the_error_with_which_a_run_stops_is_noted(tables: LaneTables) -> None:
    StoppedFile(tables.folder).write(b"{}")
    assert stopped_run(tables) is None, "content that is no note is none"
    stop(tables, GroupMoved("another client moved it; `ackline skip orders --to 7`, or `ackline other`"))
    note = stopped_run(tables)
    assert note is not None
    assert (note.reason, note.run_id, note.lasting, note.at) == ("GroupMoved", "run-7", True, NOON)
    assert (note.sentence[:20], note.command) == ("another client moved", "ackline skip orders --to 7")
    stop(tables, TransientError("no broker"))
    found = stopped_run(tables)
    assert found is not None
    assert (found.lasting, found.command) == (False, "ackline doctor orders")


@pytest.mark.parametrize("hours", [-1, 1])
def test_i18_a_note_is_out_of_date_once_the_lane_has_moved_whatever_the_clock_of_its_host(
    tables: LaneTables, hours: int
) -> None:
    """By the times of the two hosts, a note of a slow clock would never be shown, and one of a fast clock for ever."""
    moves: list[Callable[[LedgerStore], object]] = [
        lambda store: store.store_settlement(settlement(0)),
        lambda store: store.store_plan(plan(1)),
        lambda store: store.store_settlement(settlement(1)),
        lambda store: store.store_settlement(settlement(0, epoch=1)),
    ]
    for move in moves:
        stop(tables, GroupMoved("moved"), NOON + timedelta(hours=hours))
        assert stopped_run(tables) is not None
        move(LedgerStore(tables.root, "orders", "live"))
        assert stopped_run(tables) is None


def test_a_turn_that_an_operator_has_closed_stops_no_later_run_and_is_not_noted(tables: LaneTables) -> None:
    stop(tables, TurnVoided("closed as void"))
    assert stopped_run(tables) is None


def test_a_note_that_can_not_be_written_hides_no_error_and_makes_no_folder(root: str, tables: LaneTables) -> None:
    elsewhere = LaneTables(f"{root}/elsewhere", "orders", "live")
    stop(elsewhere, GroupMoved("moved"))
    assert not Path(elsewhere.folder).exists(), "a mistyped ACKLINE_AUDIT stays empty"
    (Path(tables.folder) / "stopped.json").mkdir()
    stop(tables, GroupMoved("moved"))
    assert stopped_run(tables) is None


def test_a_transient_error_that_repeats_without_progress_three_times_says_so(tables: LaneTables) -> None:
    def stops(error: type[AcklineError] = TransientError) -> bool:
        raised = error("no record came; then run this again")
        stop(tables, raised)
        note = stopped_run(tables)
        assert note is not None
        assert note.sentence == str(raised)
        return "no turn was planned or settled in between" in str(raised)

    assert [stops() for _ in range(4)] == [False, False, True, True]
    store = LedgerStore(tables.root, "orders", "live")
    store.store_settlement(settlement(0))
    assert [stops() for _ in range(3)] == [False, False, True], "the lane has moved"
    store.store_plan(plan(1))
    store.count_start(plan(1))
    assert [stops(), stops()] == [False, False]
    store.count_start(plan(1))
    assert stops(), "a start alone is no progress"
    assert [stops(FatalError), stops(), stops(), stops()] == [False, False, False, True]
    assert [stops(HandedOut) for _ in range(4)] == [False] * 4, "another process was at work"
    kinds = (FatalError, HandedOut, TransientError, HandedOut, TransientError, HandedOut, TransientError)
    assert [stops(kind) for kind in kinds] == [False] * 6 + [True], "it comes again and again all the same"
