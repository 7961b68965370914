"""Each lane has tables of its own, and the tables of the first layout are refused."""

from pathlib import Path

import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner

from ackline.cli.app import app
from ackline.errors import ConfigError
from ackline.tables.layout import all_lanes
from ackline.tables.maintenance import maintain
from ackline.tables.queries import AuditFilter, audit_rows
from ackline.tables.schemas import SETTLEMENTS
from ackline.tables.store import LedgerStore
from tests.tables.lane_rows import settlement, turn, written
from tests.tables.roots import EVERYWHERE, ON_DISK

ROOTS = EVERYWHERE


@ON_DISK
def test_each_lane_has_three_tables_in_a_folder_of_its_own(root: str) -> None:
    for pipeline, lane in [("orders", "live"), ("orders", "backfill-7"), ("plans", "live")]:
        LedgerStore(root, pipeline, lane).store_settlement(settlement(0, pipeline=pipeline))
    assert [str(path.parent.relative_to(root)) for path in sorted(Path(root).rglob("_delta_log"))] == [
        "orders/backfill-7/settlements", "orders/settlements", "plans/settlements",
    ]  # fmt: skip
    assert [(lane.pipeline, lane.lane) for lane in all_lanes(root)] == [
        ("orders", "live"), ("orders", "backfill-7"), ("plans", "live")
    ]  # fmt: skip


def test_the_audit_puts_the_lanes_of_a_pipeline_together_again(root: str, store: LedgerStore) -> None:
    lane, other = LedgerStore(root, "orders", "backfill-7"), LedgerStore(root, "payments", "live")
    for each, offset in ((store, 1), (lane, 2), (other, 3)):
        of = turn(1, pipeline=each.pipeline)._replace(lane=each.lane)
        each.store_outcomes(of, [written(each, of, [(offset, 1, "acked")])])
    each_row = [(row["lane"], row["offset"]) for row in list(audit_rows(root, "orders", AuditFilter(everything=True)))]
    assert each_row == [("live", 1), ("backfill-7", 2)]


@ON_DISK
def test_the_first_layout_is_refused_with_what_to_do(
    root: str, store: LedgerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    DeltaTable.create(f"{root}/settlements", SETTLEMENTS, partition_by=["pipeline", "plan_date"])
    for refused in (store.newest, lambda: maintain(root), lambda: list(audit_rows(root, "orders", AuditFilter()))):
        with pytest.raises(ConfigError, match=r"first layout.*Point ACKLINE_AUDIT at an empty folder"):
            refused()
    monkeypatch.setenv("ACKLINE_AUDIT", root)
    assert isinstance(CliRunner().invoke(app, ["maintain"]).exception, ConfigError)
    assert not Path(store.folder).exists()
