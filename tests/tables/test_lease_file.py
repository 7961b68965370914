"""The file of a lease, on a disk and in an object store: replaced whole, absent without an error, beside the tables."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ackline.errors import TransientError
from ackline.lane.lease import TurnLease, WhenHeld
from ackline.ledger.turns import TurnId
from ackline.pipeline.folder import lane_folder
from ackline.tables.layout import LEASE_NAME, LeaseFile, holder_of, lanes_of
from ackline.tables.lease import MISSED_RENEWALS, RENEWAL_SECONDS, HolderState, Lease
from tests.tables.roots import EVERYWHERE, ON_DISK

ROOTS = EVERYWHERE


def test_a_file_is_written_replaced_and_removed(root: str) -> None:
    file = LeaseFile(lane_folder(root, "orders", "live"))
    assert file.read() is None
    file.remove()
    for content in (b"first", b"the second, which is longer", b"3"):
        file.write(content)
        assert LeaseFile(file.folder).read() == content
    file.remove()
    assert file.read() is None


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
    """The same on the disk and in an object store; another process finds the holder and whether it has lapsed."""
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


def test_a_lease_that_is_not_renewed_is_given_up_after_a_minute(root: str) -> None:
    file, turn, waited = LeaseFile(lane_folder(root, "orders", "live")), TurnId("orders", "live", 0, 7), list[float]()
    lease = replace(Lease.of_this_process(turn, "run-1", datetime.now(UTC)), machine="another boot")
    file.write(lease.encode())
    with TurnLease(file, "run-2", sleep=waited.append, renewing=lambda _: nullcontext()).held(turn) as has_waited:
        assert has_waited
        assert Lease.decode(file.read() or b"").run_id == "run-2"
    assert sum(waited) == MISSED_RENEWALS * RENEWAL_SECONDS
    assert file.read() is None


def test_each_lane_has_a_file_of_its_own_which_no_reader_takes_for_a_lane(root: str) -> None:
    live, backfill = (LeaseFile(lane_folder(root, "orders", lane)) for lane in ("live", "backfill-1"))
    live.write(b"live")
    backfill.write(b"backfill")
    assert (live.read(), backfill.read()) == (b"live", b"backfill")
    assert lanes_of(root, "orders") == []


@ON_DISK
def test_no_scratch_file_is_left(root: str) -> None:
    file = LeaseFile(lane_folder(root, "orders", "live"))
    file.write(b"x")
    assert [path.name for path in (Path(root) / "orders").iterdir()] == [LEASE_NAME]


@ON_DISK
def test_a_folder_that_cannot_be_written_is_an_oserror(root: str) -> None:
    Path(root).write_text("a file in place of the folder")
    file = LeaseFile(f"{root}/orders")
    with pytest.raises(OSError, match=r"Not a directory|Cannot create"):
        file.write(b"x")
