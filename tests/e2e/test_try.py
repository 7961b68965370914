"""`ackline try` on a real broker: it says of a record what the run has stored, and leaves no trace."""

import json
import secrets
from typing import Any

from tests.e2e import wire
from tests.e2e.fixtures import MakeLab
from tests.e2e.lab import Lab
from tests.e2e.shop import OUTPUTS, item, order, rows_of, shop

HANDLERS = "tests.support.tried_handlers"
SHOWN = ("offset", "outcome", "error_class", "error_place")


def as_stored(lane: Lab) -> list[tuple[Any, ...]]:
    rows = [row for row in lane.table("outcomes") if row["attempt"]]
    return sorted(tuple(row[name] for name in SHOWN) for row in rows)


def as_tried(lane: Lab, *arguments: str) -> list[tuple[Any, ...]]:
    return [tuple(each[name] for name in SHOWN) for each in lane.ackline_json("try", lane.name, *arguments)]


def test_a_try_says_what_the_run_has_stored_and_changes_nothing(lab: MakeLab) -> None:
    lane = lab(handler=f"{HANDLERS}:price", retry={"initial_delay": "1h"})
    lane.journalled = False
    lane.produce({"price": 1}, {"card": "4711-0815"}, b"no JSON", {"price": 2})
    lane.run()
    before = [lane.table(name) for name in ("plans", "outcomes", "settlements")]
    done = lane.ackline_process("try", lane.name, lane.topic, "0", "0", "1", "2", "3", "--json")
    assert done.returncode == 0, done.stderr
    assert [tuple(each[name] for name in SHOWN) for each in json.loads(done.stdout)] == as_stored(lane)
    assert "4711" not in done.stdout + done.stderr
    assert [each[:2] for each in as_tried(lane, "--failing", "5", "--error-class", "ValueError")] == [(1, "failed")]
    handler = ["--handler", f"{HANDLERS}:pass_over"]
    assert as_tried(lane, lane.topic, "0", "1", *handler) == [(1, "skipped", "Skip", None)]
    assert [lane.table(name) for name in ("plans", "outcomes", "settlements")] == before
    assert (lane.committed(), lane.pending()) == (1, [1, 2])


def test_what_steps_emit_is_checked_against_tables_and_published_nowhere(lab: MakeLab) -> None:
    topic = f"counts-{secrets.token_hex(4)}"
    lane = shop(lab, retry={"max_retries": 0}, outputs=[*OUTPUTS, {"from": "source.counts", "topic": topic}])
    lane.broker.create_topic(topic)
    bad = item("y", bad="as well"), item("z", bad=7)
    lane.produce(order(0, item("a", 2), item("b")), order(1, item("a"), item("c", fail=True)), order(2, *bad))
    lane.run()
    tables = [output["table"] for output in OUTPUTS]
    before = [rows_of(lane, table) for table in tables], len(wire.read(lane.broker.bootstrap, topic))
    assert as_tried(lane, lane.topic, "0", "0", "1", "2") == as_stored(lane)
    assert ([rows_of(lane, table) for table in tables], len(wire.read(lane.broker.bootstrap, topic))) == before
    lane.judge(settled=True)


def test_a_broker_that_does_not_answer_ends_a_try_with_1(lab: MakeLab) -> None:
    lane = lab(kafka={"properties": {"socket.connection.setup.timeout.ms": 1000}})
    lane.journalled = False
    lane.settings["kafka"]["bootstrap_servers"] = "127.0.0.1:1"
    lane.configure()
    done = lane.ackline("try", lane.name, lane.topic, "0", "0", "--json")
    assert (done.returncode, done.stdout) == (1, "")
