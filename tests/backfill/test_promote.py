"""`ackline backfill --id ID --promote`: what a shadow has shown, for real (S87). On real tables."""

import re
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from deltalake import DeltaTable

from ackline.answers.row_diff import RowDiff, diff_rows
from ackline.backfill.form import BackfillRequest, request_of
from ackline.backfill.perform import backfill_pipeline, begin_prepared, lane_arguments, prepare, report_of
from ackline.backfill.run import find_backfill, run_backfill
from ackline.errors import ConfigError, FatalError
from ackline.forms.form import Entered
from ackline.ledger.account import Account
from ackline.outputs.given_up import give_up
from ackline.outputs.output_table import OutputTable
from tests.backfill.shadow_lane import killed_at, order, rows_of, shadow, shop
from tests.outputs.test_newest import JOINED, acts, emits, fails
from tests.outputs.test_turn import away
from tests.support.actor import Killed
from tests.support.memory import ArrivedLetter
from tests.support.memory_adapters import MemoryAdapters, no_session
from tests.support.memory_lane import TP
from tests.worker.disk_lane import DiskBackfill, DiskLane, lane_of

PROMOTED = "backfill-v2-promoted"
EMIT = "tests.worker.disk_handlers:emit"


def requested(**values: Any) -> BackfillRequest:
    return request_of(Entered({"id": "v2", "promote": True, **values}, True), "x")


def opened(lane: DiskLane, request: BackfillRequest) -> tuple[MemoryAdapters, Any]:
    """The adapters of the lane of a request, and its arguments."""
    live = lane.adapters()
    arguments = lane_arguments(live.store.other_lane(request.lane), request)
    pipeline = backfill_pipeline(live.pipeline, request.lane, arguments)
    return lane.adapters_of(pipeline, request.lane), arguments


def promote(lane: DiskLane, request: BackfillRequest | None = None) -> Account:
    """Promotes a shadow as the command does, and runs what is due."""
    request = request or requested()
    adapters, arguments = opened(lane, request)
    prepared = prepare(adapters, request, arguments)
    if prepared.choice is not None:
        begin_prepared(adapters, prepared, arguments)
    run_backfill(adapters, no_session)
    found = find_backfill(adapters.store)
    assert found is not None
    return found.account


def counts(found: RowDiff) -> tuple[int, int, list[int]]:
    return found.same, found.changed, found.only


def only_promoted(lane: DiskLane) -> list[tuple[int, str]]:
    """The rows that the promotion has written in the real table."""
    return [row[:2] for row in rows_of(lane, "prices") if row[2] == PROMOTED]


def test_s87_a_promotion_gives_exactly_what_the_diff_has_said() -> None:
    with shop(outputs=[{"from": "source", "table": "prices"}]) as lane:
        v2 = shadow(lane, handler="tests.backfill.prices:quiet")
        lane.settings["backfill"] = {"handlers": ["tests.backfill.prices:quiet"]}
        v2.run()
        lane.produce(order(9, "9.99"))
        account = promote(lane)
        assert (account.settled, account.outcomes) == (True, v2.account().outcomes)
        assert account.asked == v2.account().asked, "and not what was produced since"
        assert only_promoted(lane) == [row[:2] for row in rows_of(lane, "prices__v2")]
        assert counts(diff_rows(lane.adapters(), "prices", "backfill-v2", PROMOTED)) == (3, 0, [0, 0])
        letters = [event for event in lane.world.history if isinstance(event, ArrivedLetter)]
        assert [letter.headers["ackline.lane"] for letter in letters] == [PROMOTED], "of the promotion alone"


def test_twice_it_is_the_same_lane() -> None:
    with shop() as lane:
        shadow(lane, handler=None).run()
        first = promote(lane)
        rows = rows_of(lane, "prices")
        assert promote(lane) == first
        assert rows_of(lane, "prices") == rows
        assert lane.adapters().store.lanes() == ["live", "backfill-v2", PROMOTED]


def test_s87_killed_between_any_two_writes_a_promotion_gives_each_row_once() -> None:
    number, struck = 0, True
    while struck:
        number += 1
        with shop() as lane:
            shadow(lane, handler=None).run()
            for after in (False, True):
                with killed_at(number, after) as left, suppress(Killed):
                    promote(lane)
                struck = left[0] <= 0
            assert promote(lane).settled
            assert only_promoted(lane) == [row[:2] for row in rows_of(lane, "prices__v2")], number
    assert number > 5


def test_single_offsets_that_an_outcome_has_chosen_are_promoted_one_by_one() -> None:
    with shop() as lane:
        v2 = DiskBackfill(lane, "v2", "orders:0:1-3", outcome="acked", shadow=True)
        v2.run()
        assert promote(lane).asked == v2.account().asked
        assert [row[0] for row in only_promoted(lane)] == [1, 2]


def test_both_lanes_say_so() -> None:
    with shop() as lane:
        shadow(lane, handler=None).run()
        adapters, arguments = opened(lane, requested(reason="looks right"))
        prepared = prepare(adapters, requested(reason="looks right"), arguments)
        assert "It promotes backfill-v2: the same offsets with the same handler, and their rows count." in prepared.text
        assert "shadow: rows go" not in prepared.text
        promote(lane, requested(reason="looks right"))
        found = find_backfill(adapters.store)
        assert found is not None
        assert found.genesis.reason == "promotes backfill-v2: looks right"
        assert found.arguments.shown() == "orders (promotes v2)"


def test_offsets_that_retention_took_since_are_named() -> None:
    with shop() as lane:
        shadow(lane, handler=None).run()
        lane.log().expire(2)
        adapters, arguments = opened(lane, requested())
        assert "2 offsets can't be read any more (orders[0], retention): [0, 2)" in (
            prepare(adapters, requested(), arguments).text
        )


# ---- what is refused ------------------------------------------------------------------------------------------------


def refused(lane: DiskLane, text: str, request: BackfillRequest | None = None) -> None:
    """Asserts that a promotion is refused, and that nothing is stored."""
    with pytest.raises(ConfigError, match=text):
        promote(lane, request)
    assert PROMOTED not in lane.adapters().store.lanes()


def test_what_is_no_shadow_is_refused() -> None:
    with shop() as lane:
        refused(lane, "lane has no backfill v2; `ackline backfill lane --list` lists them")
        DiskBackfill(lane, "v2", "orders").run()
        refused(lane, "backfill v2 of lane is no shadow: its rows count already")


def test_arguments_beside_it_are_refused() -> None:
    with shop() as lane:
        shadow(lane).run()
        refused(lane, "--promote takes what the shadow has: leave out RANGE, --handler",
                requested(ranges=["orders"], handler="a:b"))  # fmt: skip
    with pytest.raises(ConfigError, match="--promote: give the id of the shadow by --id"):
        request_of(Entered({"promote": True}, True), "x")
    with pytest.raises(ConfigError, match="a shadow has an id of 91 characters at most"):
        request_of(Entered({"ranges": ["orders"], "shadow": True, "id": "v" * 92}, True), "x")
    request_of(Entered({"ranges": ["orders"], "shadow": True, "id": "v" * 91}, True), "x")


def test_a_shadow_that_is_not_settled_is_refused() -> None:
    with shop() as lane:
        v2 = shadow(lane)
        v2.begin()
        refused(lane, r"backfill v2 is not settled \(5 offsets are pending\).*`ackline backfill lane --id v2`")
        v2.cancel()
        refused(lane, "an operator has skipped offsets of the shadow, and no handler has seen them")


def test_another_code_is_refused_and_one_without_a_name_is_told() -> None:
    with shop() as lane:
        lane.world.code = "1111"
        shadow(lane, handler=None).run()
        lane.world.code = "2222"
        refused(lane, "the shadow ran with the code 1111, and this is 2222. So the promotion .* begin another shadow")
        lane.world.code = ""
        adapters, arguments = opened(lane, requested())
        assert "is not known: its code has no name" in prepare(adapters, requested(), arguments).text
        lane.world.code = "1111"
        adapters, arguments = opened(lane, requested())
        assert "is not known" not in prepare(adapters, requested(), arguments).text
        assert promote(lane).settled


def test_other_settings_are_refused_by_name() -> None:
    with shop() as lane:
        shadow(lane, handler=None).run()
        lane.settings["tombstones"] = "deliver"
        lane.settings["outputs"] = [{"from": "source", "table": "others"}]
        refused(lane, "outputs, tombstones of the pipeline file changed since the shadow ran")
        lane.settings.pop("tombstones")
        lane.settings["outputs"] = [{"from": "source", "table": "prices"}, {"from": "source.seen", "topic": "seen"}]
        lane.settings["max_records_per_run"] = 2
        assert promote(lane).settled, "a limit decides nothing about a record"


def test_a_topic_that_was_made_again_and_a_log_that_was_cut_are_refused() -> None:
    with shop() as lane:
        shadow(lane, handler=None).run()
        lane.create("orders", records=9)
        refused(lane, r"the shadow has read another log: orders\[0\] was deleted and created again")
    with shop() as lane:
        shadow(lane, handler=None).run()
        lane.truncate(2, order(7, "1"), order(8, "2"), order(9, "3"))
        refused(lane, r"the shadow has read another log: orders\[0\] was truncated below 5")


def test_a_promotion_that_was_cancelled_or_is_of_an_earlier_epoch_is_no_success_and_another_epoch_promotes() -> None:
    with shop() as lane:
        shadow(lane, handler=None).run()
        begun(lane)
        DiskBackfill(lane, "v2-promoted").cancel("a test")
        with pytest.raises(ConfigError, match=r"backfill v2-promoted of lane was cancelled: .* Add `--epoch 1`"):
            promote(lane)
        lane.world.now += timedelta(minutes=1)
        assert promote(lane, requested(epoch=1)).outcomes == {"acked": 5}
        assert promote(lane, requested(epoch=1)).settled, "once more is the same"
        lane.world.now += timedelta(minutes=1)
        again = shadow(lane, handler=None)
        again.begin_epoch(1)
        again.run()
        with pytest.raises(ConfigError, match=r"is of an earlier epoch of the shadow. Add `--epoch 2`"):
            promote(lane, requested(epoch=1))


def begun(lane: DiskLane) -> None:
    adapters, arguments = opened(lane, requested())
    begin_prepared(adapters, prepare(adapters, requested(), arguments), arguments)


@pytest.mark.parametrize("changed", ["code", "tombstones", "isolation"])
def test_s87_a_promotion_that_was_stopped_goes_on_only_as_its_shadow_ran(changed: str) -> None:
    with shop() as lane:
        lane.world.code, settings = "1111", dict(lane.settings)
        shadow(lane, handler=None).run()
        begun(lane)
        if changed == "code":
            lane.world.code = "2222"
        else:
            of_kafka = {"kafka": {"isolation": "read_uncommitted"}}
            lane.settings |= {"tombstones": "deliver"} if changed == "tombstones" else of_kafka
        with pytest.raises(ConfigError, match=r"would not do what .* `ackline backfill lane --cancel v2-promoted"):
            promote(lane)
        lane.world.code, lane.settings = "1111", settings
        assert promote(lane).settled


def test_s87_a_promotion_by_range_reads_the_copies_of_what_retention_has_taken() -> None:
    later = {"initial_delay": "19h", "period": "19h", "max_delay": "19h", "max_retries": 3}
    table = {"handler": EMIT, "outputs": [{"from": "source", "table": "prices"}]}
    with lane_of({**table, "rescue": {"topic": "rescue", "before": "30d"}, "retry": later}) as lane:
        lane.create("rescue")
        lane.world.topics["orders"].retention = timedelta(hours=24)
        lane.produce(*[b"{}"] * 3)
        acts(0, fails)
        lane.run()
        emits(0, {"id": 100})
        shadow(lane, handler=None).run()
        lane.log().expire(1)
        assert promote(lane).outcomes == {"acked": 3}
        table_ = DeltaTable(f"{lane.root}/lane/outputs/prices").to_pyarrow_table()
        assert sorted(zip(table_["_offset"].to_pylist(), table_["id"].to_pylist(), strict=True)) == [
            (0, 100), (1, 1), (2, 2)
        ]  # fmt: skip


def test_the_report_of_a_promotion_names_the_tables_of_its_shadow_and_no_real_one() -> None:
    with shop(outputs=[{"from": "source", "table": "prices__v2"}]) as lane:
        shadow(lane, handler=None).run()
        promote(lane)
        adapters, _ = opened(lane, requested())
        found = find_backfill(adapters.store)
        assert found is not None
        assert re.findall(r"/outputs/(\w+)", report_of(adapters, found)[1]) == ["prices__v2__v2"]


def test_s87_a_shadow_whose_rows_were_given_up_is_not_promoted(monkeypatch: pytest.MonkeyPatch) -> None:
    with shop() as lane:
        v2 = shadow(lane, handler=None)
        with monkeypatch.context() as patch:
            patch.setattr(OutputTable, "append", away)
            with pytest.raises(FatalError):
                v2.run()
            give_up(v2.adapters(), v2.newest().turn, ["prices__v2"], "a test")
        refused(lane, "rows of the shadow were given up")


def test_s87_a_promotion_that_would_stop_at_a_row_of_several_records_is_refused() -> None:
    with lane_of(JOINED) as lane:
        for offset in range(4):
            lane.produce(b"{}")
            emits(offset, {"id": offset}, key=f"{offset // 2}")
        lane.run()
        half = DiskBackfill(lane, "v2", "orders:0:3-4", shadow=True)
        assert half.choose().related() == {"totals": {TP: [2]}}
        half.run()
        with pytest.raises(ConfigError, match=r"totals are of orders\[0\]@2, too, which the shadow has not handled"):
            promote(lane)


def test_another_backfill_with_the_id_of_a_promotion_is_refused() -> None:
    with shop() as lane:
        shadow(lane, handler=None).run()
        DiskBackfill(lane, "v2-promoted", "orders").run()
        with pytest.raises(ConfigError, match="--promote: backfill v2-promoted of lane exists and promotes nothing"):
            promote(lane)


def test_what_a_shadow_has_acked_is_not_acked_by_an_earlier_backfill() -> None:
    with shop() as lane:
        shadow(lane, handler=None).run()
        request = request_of(Entered({"ranges": ["orders"]}, True), "other")
        adapters, arguments = opened(lane, request)
        prepared = prepare(adapters, request, arguments)
        assert prepared.body(dry_run=True).acked_before == 0
