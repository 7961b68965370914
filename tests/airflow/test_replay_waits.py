"""A replay task whose turn another process replays: it gives its worker slot away, and goes on when the other ends."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowRescheduleException

from ackline.airflow import operators
from ackline.airflow.operators import LEASE_POLL, ReplayOperator
from ackline.lane.lease import TurnLease
from ackline.tables.lease import MISSED_RENEWALS, RENEWAL_SECONDS, Lease
from ackline.tables.lease_file import LeaseFile
from tests.support.memory_adapters import MemoryAdapters
from tests.support.memory_lane import NOON, OK, MemoryLane

CONTEXT: Any = {"run_id": "scheduled__1"}


class Elsewhere:
    """A lane with an open turn, which a process of another host replays."""

    def __init__(self, folder: Path) -> None:
        self.lane = MemoryLane(OK)
        self.file = LeaseFile(str(folder))
        turn = self.lane.plan().turn
        self.lease = replace(Lease.of_this_process(turn, "cli__1", NOON), host="elsewhere", machine="another boot")
        self.file.write(self.lease.encode())
        self.waited = 0.0
        self.renews_after: float | None = None

    def sleep(self, seconds: float) -> None:
        self.waited += seconds
        if self.renews_after is not None and self.waited >= self.renews_after:
            self.file.write(self.lease.renewed().encode())

    def adapters(self) -> MemoryAdapters:
        return self.lane.adapters(lease=TurnLease(self.file, "scheduled__1", sleep=self.sleep))


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Elsewhere:
    made = Elsewhere(tmp_path)

    @contextmanager
    def opened(*_: object) -> Iterator[MemoryAdapters]:
        yield made.adapters()

    monkeypatch.setattr(operators, "opened", opened)
    return made


@pytest.fixture
def reschedule(elsewhere: Elsewhere) -> Callable[[], None]:
    task = ReplayOperator(task_id="replay", pipeline=elsewhere.adapters().pipeline)
    return lambda: task._reschedule_while_held(CONTEXT)


def test_the_task_is_rescheduled_once_the_holder_has_renewed_its_lease(
    elsewhere: Elsewhere, reschedule: Callable[[], None]
) -> None:
    elsewhere.renews_after = RENEWAL_SECONDS
    before = datetime.now(UTC)
    with pytest.raises(AirflowRescheduleException) as caught:
        reschedule()
    assert before + LEASE_POLL <= caught.value.reschedule_date <= datetime.now(UTC) + LEASE_POLL
    assert elsewhere.waited == RENEWAL_SECONDS


def test_the_task_goes_on_where_the_holder_does_not_renew_its_lease_and_holds_its_slot_for_a_minute_at_most(
    elsewhere: Elsewhere, reschedule: Callable[[], None]
) -> None:
    reschedule()
    assert elsewhere.waited == MISSED_RENEWALS * RENEWAL_SECONDS
    assert elsewhere.file.read() is None, "so that the driver, which never waits, finds none"


def test_the_task_goes_on_at_once_where_nothing_is_held(elsewhere: Elsewhere, reschedule: Callable[[], None]) -> None:
    elsewhere.file.remove()
    reschedule()
    assert elsewhere.waited == 0
