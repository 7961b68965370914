"""At most once with outputs: the records are handled once the job has ended, so no call of a store that fails once may
lose them."""

from types import SimpleNamespace
from typing import Any

import pytest
from deltalake import DeltaTable

from ackline.delta import table
from ackline.delta.folder import Folder
from ackline.delta.handle import TableHandle
from ackline.delta.log import DeltaLog
from ackline.delta.object_store import options_of
from ackline.ledger.turns import LIVE
from ackline.tables.audit_table import AuditTable
from ackline.tables.store import LedgerStore
from tests.support.memory_adapters import MemoryAdapters
from tests.support.memory_lane import AT_MOST_ONCE, MemoryLane
from tests.worker.disk_lane import run_over

STORAGE = (
    (Folder, ("write_durably", "read", "names", "sizes", "make_durably")),
    (DeltaLog, ("files", "entry", "secure")),
    (TableHandle, ("state", "open")),
    (AuditTable, ("_writable", "commit")),
    (table, ("link_entry", "write_entry", "write_files")),
)
"""What reads or writes a store, between the steps and the libraries."""


class FailingLane(MemoryLane):
    """A lane on real tables, at most once, whose store fails at one of its calls between the job and its report."""

    def __init__(self, root: str, patch: pytest.MonkeyPatch) -> None:
        self.root, self.failing, self.store_calls = root, -1, list[str]()
        self._reports = False
        super().__init__(
            handler="tests.worker.disk_handlers:emit",
            outputs=[{"from": "source", "table": "totals"}],
            guarantee=AT_MOST_ONCE,
        )
        for owner, names in STORAGE:
            for name in names:
                patch.setattr(owner, name, self._failing(name, getattr(owner, name)))

    def _failing(self, name: str, call: Any) -> Any:
        def fail_or_call(*arguments: Any, **more: Any) -> Any:
            if self._reports:
                self.store_calls.append(name)
                if len(self.store_calls) == self.failing + 1:
                    raise OSError("HTTP status 503 Service Unavailable")
            return call(*arguments, **more)

        return fail_or_call

    def adapters(self, *arguments: Any, **changes: Any) -> MemoryAdapters:
        def run_job(_: Any, job: Any, __: Any) -> Any:
            result = run_over(self.world, job)
            self._reports = True
            return result

        def notify(event: str, *_: Any) -> None:
            self._reports &= event != "handled"

        return super().adapters(
            *arguments,
            store=LedgerStore(self.root, "lane", LIVE),
            run_job=run_job,
            fixed_now=self.world.now,
            listener=SimpleNamespace(notify=notify),
            **changes,
        )


def handled_turn(root: str, failing: int = -1) -> FailingLane:
    """Runs a turn of two records, each with a row, over a store whose call of this number fails."""
    with pytest.MonkeyPatch.context() as patch:
        lane = FailingLane(root, patch)
        lane.failing = failing
        lane.produce(b"{}", b"{}")
        lane.run()
    return lane


def test_s50_no_call_of_a_store_between_marker_and_report_loses_a_record_or_a_row_by_failing_once(root: str) -> None:
    calls = handled_turn(f"{root}/all").store_calls
    assert {"write_durably", "_writable"} < set(calls), "of the manifest, and of outcomes n"
    for number, name in enumerate(calls):
        lane = handled_turn(f"{root}/{number}", number)
        assert len(lane.store_calls) > number
        assert dict(lane.settled().counts) == {"acked": 2}, name
        table = DeltaTable(f"{root}/{number}/lane/outputs/totals", storage_options=options_of(root))
        assert sorted(table.to_pyarrow_table()["id"].to_pylist()) == [0, 1], name
