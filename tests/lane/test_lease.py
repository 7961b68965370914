"""The lease of a turn: a second run waits for the first, and goes on when that has ended."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ackline.errors import TransientError
from ackline.lane.lease import POLL_SECONDS, TurnLease, WhenHeld
from ackline.ledger.turns import TurnId
from ackline.steps import replay
from ackline.tables.layout import LEASE_NAME, LeaseFile
from ackline.tables.lease import MISSED_RENEWALS, RENEWAL_SECONDS, Lease, ProcessIdentity
from tests.support.memory_adapters import no_session
from tests.support.memory_lane import NOON, OK, MemoryLane

TURN = TurnId("orders", "live", 0, 7)
GIVEN_UP = MISSED_RENEWALS * RENEWAL_SECONDS


class Waits:
    """A clock that goes on when a run waits; `events` happen when so many seconds have passed."""

    def __init__(self, **events: Callable[[], object]) -> None:
        self.seconds = 0.0
        self.events = {float(name.removeprefix("at_")): event for name, event in events.items()}

    def sleep(self, seconds: float) -> None:
        assert self.seconds < 10 * GIVEN_UP, "waits for ever"
        self.seconds += seconds
        for time in sorted(time for time in self.events if time <= self.seconds):
            self.events.pop(time)()


class Renewing:
    """Stands for the thread that renews: a test calls `renew`."""

    def __init__(self) -> None:
        self.renew: Callable[[], bool] = lambda: False
        self.active = False

    @contextmanager
    def __call__(self, renew: Callable[[], bool]) -> Iterator[None]:
        self.renew, self.active = renew, True
        yield
        self.active = False


@pytest.fixture
def file(tmp_path: Path) -> LeaseFile:
    return LeaseFile(str(tmp_path / "audit" / "orders"))


def leases(file: LeaseFile, waits: Waits | None = None, **changes: Any) -> TurnLease:
    sleep = (waits or Waits()).sleep
    return replace(TurnLease(file, "run-2", clock=lambda: NOON, sleep=sleep, renewing=Renewing()), **changes)


def held_by_another(file: LeaseFile, **changes: Any) -> Lease:
    """Writes the lease of a process of another host, which no process here can look at."""
    lease = replace(Lease.of_this_process(TURN, "run-1", NOON), host="elsewhere", machine="another boot", **changes)
    file.write(lease.encode())
    return lease


def stored(file: LeaseFile) -> Lease | None:
    content = file.read()
    return None if content is None else Lease.decode(content)


def test_a_run_holds_the_lease_while_it_replays_and_removes_it_afterwards(file: LeaseFile) -> None:
    renewing = Renewing()
    with leases(file, renewing=renewing).held(TURN) as waited:
        lease = stored(file)
        assert lease is not None
        assert (lease.turn, lease.run_id, lease.since, lease.renewals) == (str(TURN), "run-2", NOON, 0)
        assert ProcessIdentity.decode(lease.process) == ProcessIdentity.of(os.getpid())
        assert renewing.renew()
        assert stored(file) == lease.renewed()
    assert (waited, file.read(), renewing.active) == (False, None, False)


def test_a_lease_ends_with_an_error_too(file: LeaseFile) -> None:
    with pytest.raises(KeyboardInterrupt), leases(file).held(TURN):
        raise KeyboardInterrupt
    assert file.read() is None


def test_a_second_run_says_who_has_the_turn_and_goes_on_when_that_ends(
    file: LeaseFile, caplog: pytest.LogCaptureFixture
) -> None:
    lease = held_by_another(file)
    waits = Waits(at_15=lambda: file.write(lease.renewed().encode()), at_30=file.remove)
    with leases(file, waits).held(TURN) as waited:
        assert waited
    assert waits.seconds == 30
    [message] = caplog.messages
    assert message.startswith(f"{TURN} is being replayed by run run-1 on host elsewhere (process {os.getpid()}) since ")
    assert "2026-03-01T12:00:00+00:00" in message
    assert "`ackline run orders --take-over`" in message


def test_a_run_waits_for_as_long_as_the_lease_is_renewed(file: LeaseFile) -> None:
    lease = held_by_another(file)

    def renew(number: int) -> Callable[[], object]:
        return lambda: file.write(replace(lease, renewals=number).encode())

    longest = GIVEN_UP - POLL_SECONDS
    renewals = {f"at_{number * longest}": renew(number) for number in range(1, 9)}
    waits = Waits(**renewals, **{f"at_{8.5 * longest}": file.remove})
    with leases(file, waits).held(TURN) as waited:
        assert waited
    assert waits.seconds >= 8.5 * longest


def test_a_lease_that_is_not_renewed_is_given_up_by_the_waiter_s_own_clock(
    file: LeaseFile, caplog: pytest.LogCaptureFixture
) -> None:
    """The clock of the other host is wrong: its lease began in the future."""
    lease = held_by_another(file, since=NOON.replace(year=2099))
    waits = Waits()
    with leases(file, waits).held(TURN) as waited:
        mine = stored(file)
        assert mine is not None
        assert waited
        assert mine.holder != lease.holder
    assert waits.seconds == GIVEN_UP
    assert "not renewed for 60 s; going on" in caplog.messages[-1]


def test_a_process_of_this_host_that_has_ended_is_not_waited_for(
    file: LeaseFile, caplog: pytest.LogCaptureFixture
) -> None:
    """Its number may be that of another process by now; its start tells them apart."""
    process = ProcessIdentity.of(os.getpid())
    assert process is not None
    for gone in (ProcessIdentity(process.pid, process.started + 1), ProcessIdentity(2**22 + 1, 5)):
        lease = replace(Lease.of_this_process(TURN, "run-1", NOON), process=str(gone))
        file.write(lease.encode())
        waits = Waits()
        with leases(file, waits).held(TURN) as waited:
            assert (waited, waits.seconds) == (False, 0)
        assert "which has ended; going on" in caplog.messages[-1]


def test_a_process_of_another_host_is_waited_for_although_no_process_here_has_its_number(file: LeaseFile) -> None:
    held_by_another(file, process=str(ProcessIdentity(2**22 + 1, 5)))
    waits = Waits()
    with leases(file, waits).held(TURN) as waited:
        assert waited
    assert waits.seconds >= GIVEN_UP, "it did not renew its lease for so long"


def test_take_over_does_not_wait_and_the_other_run_lets_go_of_the_lease(file: LeaseFile) -> None:
    first, second = Renewing(), Renewing()
    with leases(file, renewing=first).held(TURN):
        with leases(file, renewing=second, when_held=WhenHeld.TAKE_OVER).held(TURN) as waited:
            taken = stored(file)
            assert not waited
            assert not first.renew()
            assert stored(file) == taken
            assert second.renew()
        assert file.read() is None
    assert file.read() is None


def test_a_driver_of_airflow_refuses_instead_of_waiting(file: LeaseFile) -> None:
    held_by_another(file)
    refused = pytest.raises(TransientError, match="is being replayed by run run-1 on host elsewhere")
    with refused, leases(file, when_held=WhenHeld.REFUSE).held(TURN):
        pass
    assert stored(file) is not None


def test_a_task_of_airflow_sees_within_a_minute_whether_the_holder_lives(file: LeaseFile) -> None:
    lease = held_by_another(file)
    waits = Waits(at_20=lambda: file.write(lease.renewed().encode()))
    assert (leases(file, waits).living_holder(TURN), waits.seconds) == (lease.renewed(), 20)
    assert leases(file, waits).living_holder(TURN) is None
    assert waits.seconds == 20 + GIVEN_UP
    assert file.read() is None
    assert leases(file, waits).living_holder(TURN) is None
    assert waits.seconds == 20 + GIVEN_UP


def test_the_lease_of_another_turn_is_left_over(file: LeaseFile) -> None:
    held_by_another(file)
    with leases(file).held(TURN._replace(n=8)) as waited:
        assert not waited


@pytest.mark.parametrize("other", [b"", {"run_id": "r\x1b[2J"}, {"host": "h" * 251}, {"since": "2026-01-01T00:00"}])
def test_content_that_is_not_a_lease_is_ignored_with_a_warning(
    file: LeaseFile, other: bytes | dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    lease = json.loads(held_by_another(file).encode())
    file.write(other if isinstance(other, bytes) else json.dumps(lease | other))
    with leases(file).held(TURN) as waited:
        assert not waited
        assert stored(file) is not None
    assert f"{LEASE_NAME} is not a lease" in caplog.messages[0]


class Broken(LeaseFile):
    """A store that can't be used."""

    def read(self) -> bytes | None:
        raise OSError("away")

    def write(self, content: str | bytes) -> None:
        raise OSError("away")

    def remove(self) -> None:
        raise OSError("away")


def test_a_store_that_fails_stops_no_run(caplog: pytest.LogCaptureFixture) -> None:
    with leases(Broken("nowhere")).held(TURN) as waited:
        assert not waited
    assert "goes on without it" in caplog.messages[-1]


def test_a_renewal_that_fails_is_made_again(file: LeaseFile, monkeypatch: pytest.MonkeyPatch) -> None:
    renewing = Renewing()
    with leases(file, renewing=renewing).held(TURN):
        with monkeypatch.context() as patch:
            patch.setattr(LeaseFile, "write", Broken.write)
            assert renewing.renew()
        assert renewing.renew()
        lease = stored(file)
        assert lease is not None
        assert lease.renewals == 2


def test_a_lease_holds_names_and_numbers_only(file: LeaseFile) -> None:
    with leases(file).held(TURN):
        content = json.loads(file.read() or b"")
    assert content.keys() == {"turn", "run_id", "host", "machine", "process", "since", "holder", "renewals"}


def test_replay_calls_no_handler_for_a_turn_that_another_run_has_replayed_meanwhile(file: LeaseFile) -> None:
    lane = MemoryLane(OK, OK)
    planned = lane.plan()
    held = replace(held_by_another(file), turn=str(planned.turn))
    file.write(held.encode())

    def other_run_ends() -> None:
        lane.replay()
        file.remove()

    waits = Waits(at_10=other_run_ends)
    replayed = lane.replay(lane.adapters(run_id="second", lease=leases(file, waits)))
    assert (replayed.calls, waits.seconds, len(lane.calls())) == (0, 10, 2)
    lane.settle()


def test_replay_goes_on_with_a_turn_whose_run_has_ended_without_outcomes(file: LeaseFile) -> None:
    lane = MemoryLane(OK, OK)
    planned = lane.plan()
    file.write(replace(held_by_another(file), turn=str(planned.turn)).encode())
    waits = Waits(at_10=file.remove)
    assert lane.replay(lane.adapters(lease=leases(file, waits))).calls == 2
    assert file.read() is None


def test_a_turn_without_records_needs_no_lease(file: LeaseFile) -> None:
    lane = MemoryLane().after_plan()
    replay.replay(lane.adapters(lease=leases(Broken("nowhere"))), no_session)
    lane.settle()
