"""`ackline backfill --shadow`: rows beside the real tables, and nothing anywhere else (S87). On real tables."""

from contextlib import suppress
from typing import Any

import pytest
from deltalake import DeltaTable

from ackline.backfill.form import FIELDS, request_of
from ackline.backfill.perform import backfill_pipeline, prepare
from ackline.cli.doctor import _shadows
from ackline.errors import ConfigError
from ackline.forms.arguments import BackfillArguments, check_same
from ackline.forms.form import Entered
from ackline.lane.rights import needed_rights
from ackline.outputs.output_table import OutputTable, shadows_of
from ackline.pipeline.pipeline import Pipeline, pipeline_of_turn
from ackline.verify.evidence import shadow_suffix
from ackline.verify.read_tables import OutputTables, named_in_plans, read_table
from tests.backfill.shadow_lane import FILE, WAITS, files_of, killed_at, rows_of, shadow, shop
from tests.support.actor import Killed
from tests.support.memory import ArrivedLetter, GroupCommit
from tests.worker.disk_lane import DiskBackfill

LIVE_ROWS = [(0, "1.00", "live"), (1, "2.00", "live"), (2, "3.99", "live"), (3, "4.00", "live"), (4, "5.00", "live")]
SHADOW_ROWS = [(0, "1.01", "backfill-v2"), (1, "2.00", "backfill-v2"), (2, "4.00", "backfill-v2")]
APART = ("backfill-v2/", "outputs/prices__v2/", ".staging", "outputs/.")


def test_s87_a_shadow_changes_no_table_topic_or_dead_letter() -> None:
    with shop() as lane:
        before, logs = files_of(lane), {name: topic.logs[0].end for name, topic in lane.world.topics.items()}
        history = len(lane.world.history)
        account = shadow(lane).run()
        assert account.outcomes == {"acked": 3, "dead": 1, "skipped": 1}
        assert rows_of(lane, "prices__v2") == SHADOW_ROWS
        assert rows_of(lane, "prices") == LIVE_ROWS
        assert files_of(lane, *APART) == {name: text for name, text in before.items() if not name.startswith(APART)}
        assert {name: topic.logs[0].end for name, topic in lane.world.topics.items()} == logs
        done = lane.world.history[history:]
        assert not any(isinstance(event, ArrivedLetter | GroupCommit) for event in done)


def test_s87_killed_between_any_two_writes_a_shadow_has_each_row_once_and_the_real_table_is_as_before() -> None:
    number, struck = 0, True
    while struck:
        number += 1
        with shop() as lane:
            before = files_of(lane, *APART)
            for after in (False, True):
                with killed_at(number, after) as left, suppress(Killed):
                    shadow(lane).run()
                struck = left[0] <= 0
            assert shadow(lane).run().settled
            assert rows_of(lane, "prices__v2") == SHADOW_ROWS, number
            assert files_of(lane, *APART) == before, number
    assert number > 5


def test_the_table_of_a_shadow_has_the_columns_and_partitions_that_the_real_one_has_by_now() -> None:
    columns = {"id": "long", "price": "decimal(10,2)", "note": "string"}
    with shop(outputs=[{"from": "source", "table": "prices", "columns": columns, "partition_by": ["note"]}]) as lane:
        del lane.settings["outputs"][0]["columns"], lane.settings["outputs"][0]["partition_by"]
        lane.settings["outputs"].append({"from": "source.seen", "topic": "seen"})
        shadow(lane).run()
        made = DeltaTable(f"{lane.root}/lane/outputs/prices__v2")
        assert OutputTable(made.table_uri.removeprefix("file://")).columns() == columns
        assert made.metadata().partition_columns == ["note"]


def test_a_shadow_of_a_table_that_does_not_exist_yet_makes_it_of_its_rows() -> None:
    with shop(outputs=[{"from": "source.seen", "topic": "seen"}]) as lane:
        lane.settings["outputs"] = FILE["outputs"]
        shadow(lane).run()
        assert rows_of(lane, "prices__v2") == SHADOW_ROWS
        assert not OutputTable(f"{lane.root}/lane/outputs/prices").state()


def test_a_table_by_its_uri_has_a_shadow_beside_it() -> None:
    with shop() as lane:
        uri = f"file://{lane.root}/lake/prices"
        lane.settings["outputs"] = [{**FILE["outputs"][0], "table": uri}, FILE["outputs"][1]]
        shadow(lane).run()
        rows = DeltaTable(f"{lane.root}/lake/prices__v2").to_pyarrow_table()
        assert sorted(rows["id"].to_pylist()) == [0, 1, 2]
        assert not OutputTable(f"{lane.root}/lake/prices").state()


def test_a_record_in_flight_is_acked_by_its_answer_and_only_then_has_a_row_in_the_shadow() -> None:
    """Its token is of the lane of the shadow, so no answer for it ends an attempt of another lane."""
    with shop() as lane:
        lane.settings["in_flight"] = {"timeout": "none"}
        waits = shadow(lane, "v2", "orders:0:0-1", handler=WAITS)
        assert waits.run().pending["in_flight"] == 1
        assert OutputTable(f"{lane.root}/lane/outputs/prices__v2").state() is not None
        assert rows_of(lane, "prices__v2") == []


def test_two_shadows_of_two_handlers_stand_beside_each_other() -> None:
    """Two versions of a handler are two entries of `backfill.handlers`."""
    with shop() as lane:
        shadow(lane, "v2").run()
        shadow(lane, "v1", handler=None).run()
        assert rows_of(lane, "prices__v2") == SHADOW_ROWS
        assert [row[:2] for row in rows_of(lane, "prices__v1")] == [row[:2] for row in LIVE_ROWS]


def pipeline(**more: Any) -> Pipeline:
    kafka = {"bootstrap_servers": "b:1", "group_id": "g", "topics": ["orders"]}
    file = {"name": "lane", "handler": "a:b", "dead_letter": {"topic": "dead"}, "kafka": kafka, **FILE, **more}
    return Pipeline.model_validate(file)


SHADOW = BackfillArguments(("orders",), shadow=True)


def test_a_shadow_is_in_its_settings_and_an_open_turn_keeps_it_whatever_a_process_has_opened() -> None:
    of_lane = backfill_pipeline(pipeline(), "backfill-v2", SHADOW)
    settings = of_lane.settings()
    assert (settings["shadow"], settings["dead_letter"]) == ("v2", "none")
    assert [output["table"] or output["topic"] for output in settings["outputs"]] == ["prices__v2", "seen"]
    assert "shadow" not in pipeline().settings()
    plan: Any = type("Plan", (), {"settings": settings, "isolation": "read_committed", "turn": "turn 1"})
    of_turn = pipeline_of_turn(pipeline(), plan)
    assert (of_turn.shadow, of_turn.dead_letter_topic) == ("v2", None)
    assert [output.table for output in of_turn.outputs or ()] == ["prices__v2", None]
    long = "x" * 100
    of_turn = pipeline_of_turn(pipeline(), type("Plan", (), {  # type: ignore[arg-type]
        "settings": backfill_pipeline(pipeline(outputs=[{"from": "source", "table": long}]), f"backfill-{long}", SHADOW)
        .settings(), "isolation": "read_committed", "turn": "turn 1"}))  # fmt: skip
    assert [output.table for output in of_turn.outputs or ()] == [f"{long}__{long}"]


def test_a_file_has_no_key_shadow() -> None:
    with pytest.raises(ValueError, match="shadow"):
        pipeline(shadow="v2")


def test_a_shadow_needs_no_right_to_write() -> None:
    with shop() as lane:
        rights = needed_rights(shadow(lane).adapters(), ["orders"])
        assert {right.operation for right in rights} == {"READ", "DESCRIBE"}
        lane.world.topics.pop("seen")
        assert shadow(lane).run().settled, "nor the topic"


def test_a_shadow_and_a_topic_of_dead_letters_contradict_each_other() -> None:
    with pytest.raises(ConfigError, match="--dead-letter dead and --shadow contradict each other"):
        BackfillArguments(("orders",), shadow=True, dead_letter="dead").check()
    BackfillArguments(("orders",), shadow=True, dead_letter="none").check()


def test_a_shadow_whose_table_is_a_real_one_or_exists_is_refused() -> None:
    outputs = [{"from": "source", "table": "prices"}, {"from": "source.seen", "table": "prices__v2"}]
    with pytest.raises(ConfigError, match="would go to prices__v2, which is an output table of lane; give another id"):
        backfill_pipeline(pipeline(outputs=outputs), "backfill-v2", SHADOW)
    with shop() as lane:
        shadow(lane).run()
        of_lane = shadow(lane, "v2").adapters()
        adapters = shadow(lane, "v2").adapters(store=of_lane.store.other_lane("backfill-other"))
        request = request_of(Entered({"id": "other", "shadow": True, "ranges": ["orders"]}, True), "x")
        with pytest.raises(ConfigError, match="the table prices__v2 exists, and this shadow has not begun"):
            prepare(adapters, request, request.arguments)


def test_whether_it_is_a_shadow_is_compared_when_a_lane_goes_on() -> None:
    entered = Entered({"ranges": ["orders"], "id": "v2", "shadow": True}, True)
    assert request_of(entered, "x").arguments.shadow
    assert [field.option for field in FIELDS if field.name == "shadow"] == ["--shadow"]
    with pytest.raises(ConfigError, match="--shadow: backfill v2 began with nothing, not --shadow"):
        check_same("v2", BackfillArguments(("orders",)), SHADOW)


def test_a_preview_names_the_tables_and_the_topics_that_get_nothing_and_stores_nothing() -> None:
    with shop() as lane:
        before = files_of(lane)
        request = request_of(Entered({"ranges": ["orders"], "id": "v2", "shadow": True}, True), "x")
        prepared = prepare(shadow(lane).adapters(), request, request.arguments)
        assert prepared.text.splitlines()[-1] == (
            "It is a shadow: rows go to prices__v2 beside prices; nothing is sent to dead letters, topic seen."
        )
        assert prepared.body(dry_run=True).dump()["shadow_tables"] == ["prices__v2"]
        assert files_of(lane) == before


def test_doctor_and_sql_find_the_tables_of_a_shadow() -> None:
    with shop() as lane:
        DiskBackfill(lane, "real", "orders").run()
        shadow(lane).run()
        checks = [(check.name, check.ok, check.detail) for check in _shadows(lane.adapters())]
        assert checks == [("outputs of backfill-v2", True, "a shadow, settled; tables prices__v2")]
        assert shadows_of(f"{lane.root}/lane/outputs/prices") == [f"{lane.root}/lane/outputs/prices__v2"]
        assert shadows_of("/proc/nothing/there") == []


def test_the_checker_finds_by_the_stored_genesis_which_lane_is_a_shadow_and_its_rows() -> None:
    with shop() as lane:
        shadow(lane).run()
        DiskBackfill(lane, "real", "orders:0:0-1").run()
        suffixes = {}
        for name in ("backfill-v2", "backfill-real", "live"):
            settlements, _ = read_table(str(lane.root), "settlements", "lane", name)
            suffixes[name] = shadow_suffix(name, settlements)
        assert suffixes == {"backfill-v2": "__v2", "backfill-real": None, "live": None}
        plans, _ = read_table(str(lane.root), "plans", "lane", "backfill-v2")
        assert named_in_plans(plans) == ["prices__v2"]
        rows = OutputTables(str(lane.root), "lane", "backfill-v2").read_rows(["prices__v2", "prices"])
        assert {name: of.num_rows for name, of in rows.items()} == {"prices__v2": 3, "prices": 0}
