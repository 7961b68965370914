"""What is checked of outputs before the plan of a run is stored."""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from deltalake import DeltaTable

from ackline.errors import ConfigError, FatalError, LedgerError
from ackline.forms.form import EVERYTHING, RunRequest
from ackline.ledger.published import OutputsOfTurn, application_of
from ackline.ledger.turns import TurnId, TurnKind, number_of
from ackline.outputs.checks import check_outputs, store_plan
from ackline.outputs.expected import older_copies, unexpected
from ackline.outputs.output_table import OutputTable
from ackline.outputs.publish import publish_settled
from ackline.pipeline.outputs import OutputBlock
from ackline.pipeline.topology import topology
from ackline.tables.schemas import TABLES
from tests.actions.test_let_go import PATTERN, let_go
from tests.outputs.kept_lane import plan_of
from tests.worker.disk_lane import lane_of

TURN = TurnId("shop", "live", 0, 1)
EMITS: dict[str, Any] = {
    "handler": "tests.worker.disk_handlers:emit",
    "outputs": [{"from": "source", "table": "totals"}],
}


class Store:
    """A ledger that has begun, and keeps which plans it stores."""

    def __init__(self, root: Path) -> None:
        self.live_folder, self.plans = f"{root}/shop", list[Any]()

    def newest(self) -> Any:
        return SimpleNamespace(turn=TURN._replace(n=0), outputs="", partitions={})

    def ledger_id(self) -> str:
        return "ledger"

    def open_plan(self, newest: Any) -> None:
        return None

    def store_plan(self, plan: Any) -> bool:
        self.plans.append(plan)
        return True


def adapters_of(root: Path, *outputs: dict[str, Any], topics: tuple[str, ...] = ()) -> Any:
    blocks = [OutputBlock.model_validate({"from": f"source.s{n}", **output}) for n, output in enumerate(outputs)]
    pipeline = SimpleNamespace(name="shop", topology=topology([], blocks), outputs=blocks, shadow=None)
    cluster = SimpleNamespace(topics=lambda wanted: {name: None for name in wanted if name in topics})
    return SimpleNamespace(pipeline=pipeline, store=Store(root), cluster=cluster, request=EVERYTHING)


def plan_run(adapters: Any, empty: bool = False) -> list[Any]:
    """Stores the plan of a run. Returns which plans are stored."""
    store_plan(adapters, adapters.store.newest(), plan_of(TURN, empty=empty), publish_settled)
    plans: list[Any] = adapters.store.plans
    return plans


def away(*_: Any, **__: Any) -> bool:
    """Stands for `OutputTable.append` of a table that can't be reached."""
    raise FatalError("the table is away")


def table(folder: str) -> None:
    assert OutputTable(folder, {"value": "string"}).append([], "a user", 1)


def test_an_output_that_can_not_be_used_stops_a_run_before_its_plan_is_stored(tmp_path: Path) -> None:
    table(f"{tmp_path}/shop/outputs/totals")
    (tmp_path / "file").touch()
    refused: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"topic": "none"}, ConfigError, "output topic none of pipeline shop does not exist"),
        ({"table": "totals", "columns": {"value": "long"}}, ConfigError, "totals exists with other columns"),
        ({"table": f"file://{tmp_path}/file/totals"}, FatalError, f"{tmp_path}/file/totals can't be used"),
        ({"table": "file:///proc/1/totals"}, FatalError, "table at /proc/1/totals does not exist, and its place can't"),
    ]
    for output, error, text in refused:
        adapters = adapters_of(tmp_path, output)
        with pytest.raises(error, match=text):
            plan_run(adapters)
        assert adapters.store.plans == []


def test_a_table_that_can_be_created_is_no_obstacle_and_the_check_leaves_nothing(tmp_path: Path) -> None:
    adapters = adapters_of(tmp_path / "audit", {"table": "totals"}, {"table": f"file://{tmp_path}/lake/of/mine"})
    assert (len(plan_run(adapters)), list(tmp_path.iterdir())) == (1, [])


def test_only_a_plan_that_reads_something_opens_the_outputs(tmp_path: Path) -> None:
    adapters = adapters_of(tmp_path, {"table": "file:///proc/1/totals"})
    assert len(plan_run(adapters, empty=True)) == 1
    assert store_plan(adapters, adapters.store.newest(), plan_of(TURN, TurnKind.SKIP), publish_settled)


def test_a_ledger_from_before_the_first_publish_is_found_before_a_record_is_handled(tmp_path: Path) -> None:
    made = OutputTable(f"{tmp_path}/shop/outputs/totals", {"value": "string"})
    assert made.append([], application_of("ledger", TURN), number_of(TURN._replace(n=3), 7))
    adapters = adapters_of(tmp_path, {"table": "totals"})
    with pytest.raises(LedgerError, match=r"holds turn 3 .* ACKLINE_AUDIT is an older copy"):
        plan_run(adapters)
    assert adapters.store.plans == []


def test_two_outputs_to_one_table_stop_a_run_and_the_error_names_both_keys(tmp_path: Path) -> None:
    """A table takes a turn once, so the rows of the second output would be lost."""
    (tmp_path / "link").symlink_to(tmp_path)
    for uri in (f"file://{tmp_path}/shop/outputs/totals", f"file://{tmp_path}/link/shop/outputs/totals"):
        adapters = adapters_of(tmp_path, {"table": "totals"}, {"topic": "a"}, {"table": uri}, topics=("a",))
        with pytest.raises(ConfigError, match=r"outputs\.0\.table \(totals\) and outputs\.2\.table .* are one table"):
            plan_run(adapters)
        assert adapters.store.plans == []


@pytest.mark.parametrize("older", ["outputs", "settlements"])
def test_a_table_or_a_ledger_that_is_an_older_copy_stops_a_run_before_its_plan_is_stored(older: str) -> None:
    """At most once, the records of that turn would be handed out and their rows could not be published."""
    with lane_of(EMITS) as lane:
        folders = ["outputs"] if older == "outputs" else ["plans", "outcomes", "settlements"]
        lane.produce(b"{}")
        lane.run()
        for folder in folders:
            shutil.copytree(lane.root / "lane" / folder, lane.root / "copy" / folder)
        lane.produce(b"{}")
        lane.run()
        for folder in folders:
            shutil.rmtree(lane.root / "lane" / folder)
            shutil.move(lane.root / "copy" / folder, lane.root / "lane" / folder)
        if older != "outputs":  # the commits of the newer copy would stop the run first
            lane.world.committed.clear()
        lane.produce(b"{}")
        lane.run_fails(LedgerError, "is an older copy")
        newest, plan = lane.adapters().newest_and_open_plan()
        assert newest is not None
        assert (newest.turn.n, plan) == (2 if older == "outputs" else 1, None)


def test_i16_no_turn_is_planned_and_no_action_before_each_table_has_the_turn_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with lane_of(EMITS) as lane:
        lane.produce(b"{}")
        with monkeypatch.context() as patch:
            patch.setattr(OutputTable, "append", away)
            lane.run_fails(FatalError, "the table is away")
            for act in (lane.plan, lambda: lane.perform(TurnKind.PAUSE), lambda: lane.perform(TurnKind.RESET)):
                with pytest.raises(FatalError, match="the table is away"):
                    act()
        newest, plan = lane.adapters().newest_and_open_plan()
        assert newest is not None
        assert (newest.turn.n, newest.kind, plan, lane.committed()) == (1, TurnKind.RUN, None, None)
        lane.plan()
        published = DeltaTable(str(lane.root / "lane" / "outputs" / "totals")).to_pyarrow_table()
        assert published["id"].to_pylist() == [0]


def test_i16_a_table_that_gets_another_name_and_its_old_one_again_takes_each_turn() -> None:
    with lane_of(EMITS) as lane:
        for name in ("totals", f"file://{lane.root}/lane/outputs/totals", "totals", "totals"):
            lane.settings["outputs"] = [{"from": "source", "table": name}]
            lane.produce(b"{}")
            lane.run()
        published = DeltaTable(str(lane.root / "lane" / "outputs" / "totals")).to_pyarrow_table()
        assert sorted(published["id"].to_pylist()) == [0, 1, 2, 3]
        assert older_copies(lane.adapters().store, lane.newest()) == {}


def test_i16_a_root_that_is_copied_elsewhere_goes_on_under_any_name_of_its_table(tmp_path: Path) -> None:
    with lane_of(EMITS) as lane:
        lane.produce(b"{}")
        lane.run()
        lane.root = shutil.copytree(lane.root, tmp_path / "copy")
        older = shutil.copytree(lane.root / "lane" / "outputs", tmp_path / "older")
        for name in ("totals", f"file://{lane.root}/lane/outputs/totals"):
            lane.settings["outputs"] = [{"from": "source", "table": name}]
            lane.produce(b"{}")
            lane.run()
        published = DeltaTable(str(lane.root / "lane" / "outputs" / "totals")).to_pyarrow_table()
        assert sorted(published["id"].to_pylist()) == [0, 1, 2]
        assert list(OutputsOfTurn.decode(lane.newest().outputs).expected) == ["totals"]
        shutil.rmtree(lane.root / "lane" / "outputs")
        shutil.move(older, lane.root / "lane" / "outputs")
        lane.produce(b"{}")
        lane.run_fails(LedgerError, "output table totals holds turn 1 .* the table is an older copy")


def test_a_turn_for_which_no_number_is_left_is_refused_before_its_plan_is_stored(tmp_path: Path) -> None:
    adapters, late = adapters_of(tmp_path), TURN._replace(n=1 << 27)
    for plan in (plan_of(late), plan_of(late, TurnKind.SKIP), plan_of(TURN._replace(epoch=4095), TurnKind.RESET)):
        way = "adopt-ledger shop" if plan.kind.opens_epoch else "reset shop --to floor"
        with pytest.raises(FatalError, match=f"can't be taken.* with `ackline {way} --reason"):
            store_plan(adapters, adapters.store.newest(), plan, publish_settled)
    assert adapters.store.plans == []
    assert store_plan(adapters, adapters.store.newest(), plan_of(late, TurnKind.RESET), publish_settled)


def test_a_table_that_still_waits_for_the_newest_turn_is_no_older_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    with lane_of(EMITS) as lane:
        lane.produce(b"{}")
        lane.run()
        lane.produce(b"{}")
        monkeypatch.setattr(OutputTable, "append", away)
        lane.run_fails(FatalError, "the table is away")
        assert (lane.newest().turn.n, older_copies(lane.adapters().store, lane.newest())) == (2, {})


def test_a_ledger_from_before_a_reset_is_found_by_its_table_until_its_epoch_is_a_new_one() -> None:
    with lane_of(EMITS) as lane:
        lane.produce(b"{}")
        lane.run()
        for name in TABLES:
            shutil.copytree(lane.root / "lane" / name, lane.root / "copy" / name)
        lane.perform(TurnKind.RESET)
        lane.produce(b"{}")
        lane.run()
        for name in TABLES:
            shutil.rmtree(lane.root / "lane" / name)
            shutil.move(lane.root / "copy" / name, lane.root / "lane" / name)
        lane.world.committed.clear()
        for epoch in (0, 1):
            lane.run_fails(LedgerError, "turn 1 of lane live, epoch 1, .*ACKLINE_AUDIT is an older copy")
            assert lane.perform(TurnKind.RESET).plan.turn.epoch == epoch
        assert lane.run().calls == 1


def rows_of(folder: Path) -> list[int]:
    """The ids in an output table, sorted."""
    found: list[int] = DeltaTable(str(folder)).to_pyarrow_table()["id"].to_pylist()
    return sorted(found)


def gone(lane: Any, name: str = "totals") -> Any:
    """The adapters of a run that states that a table is gone."""
    return lane.adapters(request=RunRequest(table_gone=(name,)))


def test_a_table_that_is_gone_stops_each_run_until_one_states_that_it_is_gone() -> None:
    """Its volume may not be mounted: a table that is made anew below the mount point holds a part of the rows."""
    with lane_of(EMITS) as lane:
        table, away = lane.root / "lane" / "outputs" / "totals", lane.root / "away"
        lane.produce(b"{}")
        lane.run()
        table.rename(away)
        lane.produce(b"{}")
        command = "`ackline run lane --table-gone totals`"
        for _ in range(2):
            lane.run_fails(LedgerError, f"totals does not exist any more, .*not mounted, mount it.*anew with {command}")
        assert (lane.newest().turn.n, lane.adapters().newest_and_open_plan()[1], table.exists()) == (1, None, False)
        away.rename(table)
        lane.run()
        assert rows_of(table) == [0, 1]
        shutil.rmtree(table)
        lane.produce(b"{}")
        with pytest.raises(ConfigError, match=r"table_gone: total is no output table of lane; did you mean totals\?"):
            lane.run(gone(lane, "total"))
        lane.run(gone(lane, f"file://{table}"))
        lane.produce(b"{}")
        lane.run()
        assert rows_of(table) == [2, 3]


def test_a_run_without_a_record_states_for_all_later_ones_that_a_table_is_gone() -> None:
    with lane_of(EMITS) as lane:
        table = lane.root / "lane" / "outputs" / "totals"
        lane.produce(b"{}")
        lane.run()
        shutil.rmtree(table)
        lane.run()
        lane.run(gone(lane))
        assert not table.exists()
        lane.produce(b"{}")
        lane.run()
        assert rows_of(table) == [1]


def test_a_table_that_goes_after_the_plan_or_the_settlement_is_not_made_anew_either(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with lane_of(EMITS) as lane:
        table = lane.root / "lane" / "outputs" / "totals"
        lane.produce(b"{}")
        lane.run()
        lane.produce(b"{}")
        lane.plan_and_replay()
        table.rename(lane.root / "away")
        with pytest.raises(LedgerError, match=r"totals does not exist any more.*ackline void lane --reason"):
            lane.settle()
        (lane.root / "away").rename(table)
        with monkeypatch.context() as patch:
            patch.setattr(OutputTable, "append", away)
            lane.run_fails(FatalError, "the table is away")
        shutil.rmtree(table)
        lane.run_fails(LedgerError, "does not exist any more.*`ackline void lane --give-up totals --reason")
        assert (lane.newest().turn.n, lane.committed(), table.exists()) == (2, 1, False)
        lane.run(gone(lane))
        assert (lane.committed(), rows_of(table)) == (2, [1])


def test_a_table_that_the_file_does_not_name_any_more_and_that_waits_for_rows_is_made_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with lane_of(EMITS) as lane:
        table = lane.root / "lane" / "outputs" / "totals"
        lane.produce(b"{}")
        lane.run()
        lane.produce(b"{}")
        with monkeypatch.context() as patch:
            patch.setattr(OutputTable, "append", away)
            lane.run_fails(FatalError, "the table is away")
        shutil.rmtree(table)
        lane.settings["outputs"] = [{"from": "source", "table": "others"}]
        lane.run_fails(LedgerError, "totals does not exist any more.*`ackline run lane --table-gone totals`")
        with pytest.raises(ConfigError, match="table_gone: total is no output table of lane; did you mean totals"):
            lane.run(gone(lane, "total"))
        lane.run(gone(lane))
        assert (lane.committed(), rows_of(table)) == (2, [1])


def test_a_table_of_the_live_lane_that_is_gone_stops_a_backfill() -> None:
    with lane_of(EMITS) as lane:
        lane.produce(b"{}")
        lane.run()
        shutil.rmtree(lane.root / "lane" / "outputs" / "totals")
        backfill = lane.adapters_of(lane.adapters().pipeline, "backfill-b")
        turn = TurnId("lane", "backfill-b", 0, 1)
        error = unexpected(backfill.store, turn, "totals", {})
        assert "`ackline run lane --table-gone totals`" in str(error)
        error = unexpected(backfill.store, turn, "totals", {"totals": {"id": [1]}})
        assert "`ackline backfill lane --cancel b`" in str(error)
        lane.run(gone(lane))
        assert unexpected(backfill.store, turn, "totals", {}) is None


@pytest.mark.parametrize("change", [shutil.move, shutil.copytree], ids=["moved", "copied"])
def test_a_table_that_was_moved_goes_on_under_its_new_place_and_its_old_copy_is_found_there(change: Any) -> None:
    """By the number of its newest turn, which the ledger knows of its old place."""
    with lane_of(EMITS) as lane:
        table, moved = lane.root / "lane" / "outputs" / "totals", lane.root / "lake"
        lane.produce(b"{}")
        lane.run()
        older = shutil.copytree(table, lane.root / "older")
        lane.produce(b"{}")
        lane.run()
        change(table, moved)
        lane.settings["outputs"] = [{"from": "source", "table": f"file://{moved}"}]
        lane.produce(b"{}")
        lane.run()
        lane.produce(b"{}")
        lane.run()
        assert rows_of(moved) == [0, 1, 2, 3]
        known = OutputsOfTurn.decode(lane.newest().outputs).expected
        assert set(known) == {f"file://{moved}", *(["totals"] if change is shutil.copytree else [])}
        shutil.rmtree(moved)
        lane.settings["outputs"] = [{"from": "source", "table": f"file://{older}"}]
        lane.produce(b"{}")
        names = f"file://{moved}"
        lane.run_fails(LedgerError, f"older holds turn 1 .*older copy of the ledger. Or was it moved from {names}")


def test_of_two_tables_of_a_turn_the_one_that_has_moved_is_not_taken_for_the_one_that_is_away() -> None:
    """Both hold the number of the turn. The file still names the one whose volume is not mounted."""
    with lane_of(EMITS) as lane:
        tables = lane.root / "lane" / "outputs"
        lane.settings["outputs"] = [{"from": "source", "table": name} for name in ("more", "totals")]
        lane.produce(b"{}")
        lane.run()
        shutil.move(tables / "totals", lane.root / "totals")
        lane.settings["outputs"][1] = {"from": "source", "table": f"file://{lane.root}/totals"}
        shutil.move(tables / "more", lane.root / "away")
        lane.produce(b"{}")
        lane.run_fails(LedgerError, "the output table more does not exist any more")
        shutil.move(lane.root / "away", tables / "more")
        lane.run()
        assert [rows_of(table) for table in (tables / "more", lane.root / "totals")] == [[0, 1]] * 2


def test_doctor_names_the_outputs(tmp_path: Path) -> None:
    table(f"{tmp_path}/shop/outputs/totals")
    adapters = adapters_of(tmp_path, {"table": "totals"}, {"topic": "a"}, {"table": "b"}, topics=("a",))
    assert check_outputs(adapters) == "table totals (columns value); topic a; table b (columns inferred from its rows)"


def test_a_run_that_would_open_an_epoch_by_itself_refuses_a_table_that_is_an_older_copy() -> None:
    """Its reset takes each table as it is, so no later turn would find that rows are missing."""
    with lane_of({**EMITS, "kafka": PATTERN}) as lane:
        lane.create("payments")
        lane.produce(b"{}")
        lane.run()
        outputs = lane.root / "lane" / "outputs"
        shutil.copytree(outputs, lane.root / "copy")
        lane.produce(b"{}")
        lane.run()
        lane.world.delete_topic("payments")
        let_go(lane, "payments")
        shutil.rmtree(outputs)
        shutil.copytree(lane.root / "copy", outputs)
        lane.create("payments", records=1)
        with pytest.raises(LedgerError, match=r"holds turn 1 .*: the table is an older copy.*ackline reset lane"):
            lane.run()
        assert lane.newest().turn.epoch == 0
