"""Records in flight, and answers from outside, on a real broker and Delta. The checker judges each lane."""

import json
from typing import Any

import pytest

from ackline.local.broker import Broker
from tests.e2e import wire
from tests.e2e.fixtures import MakeLab
from tests.e2e.lab import Row
from tests.e2e.shop import KEY, Answered


def test_s64_s65_s69_answers_before_the_outcomes_in_time_late_repeated_and_forged(
    lab: MakeLab, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = Answered(lab, broker)
    lane = answered.lane
    early = answered.order(early=[broker.bootstrap, answered.topic])
    lane.produce(early, *[answered.order()] * 4, {"n": 5})
    first = answered.run()
    assert first["answers"] == {"acked": 1}, "S64: the ack came before the outcome was stored"
    assert (first["partitions"][0]["floor"], answered.pending()["in_flight"]) == (1, 4)

    def refuse(_adapters: object) -> None:
        raise AssertionError("answers need no Spark")

    answered.answer(1, times=8)
    answered.answer(2, "renew 10s")
    forged = answered.tokens()[3, 1][:-3] + "AAA"
    wire.produce(broker.bootstrap, answered.topic, [wire.Write(b"ack", forged.encode()), wire.Write(b"?", b"?")])
    with monkeypatch.context() as patched:
        patched.setattr("ackline.cli.run.start_spark", refuse)
        second = answered.run(9)
    assert second["answers"] == {"acked": 1, "repeated": 7, "renewed": 1, "unsigned": 1, "malformed": 1}
    assert (second["records"], answered.pending()["in_flight"]) == (0, 3)
    third = answered.run(3)
    assert third["answers"] == {"timed_out": 2}
    assert lane.new_calls() == [(offset, 1) for offset in range(6)]
    answered.answer(3)
    answered.answer(2)
    fourth = answered.run(1)
    assert fourth["answers"] == {"acked": 1, "stale": 1}
    assert lane.new_calls() == [(3, 2), (4, 2)]
    answered.answer(3, attempt=2)
    answered.answer(4, attempt=2)
    answered.run(1)
    assert [row for row in lane.rows() if row.outcome == "acked"] == [
        Row(0, 1, "acked"), Row(1, 1, "acked"), Row(2, 1, "acked"), Row(3, 2, "acked"), Row(4, 2, "acked"),
        Row(5, 1, "acked"),
    ]  # fmt: skip
    assert lane.committed() == 6
    assert not any(KEY in json.dumps(row, default=str) for name in ("plans", "outcomes", "settlements")
                   for row in lane.table(name))  # fmt: skip
    lane.judge(settled=True)


@pytest.mark.parametrize(
    "settings",
    [
        {"handler": "tests.e2e.handlers:hands_on_as_generator", "handler_isolation": "process"},
        pytest.param({"decode": {"value": "json"}, "record_timeout": "1m"}, marks=pytest.mark.deep),
    ],
)
def test_the_commands_ack_fail_and_renew_by_token_whatever_calls_the_handler(
    lab: MakeLab, broker: Broker, settings: dict[str, Any]
) -> None:
    answered = Answered(lab, broker, **settings)
    lane = answered.lane
    lane.produce(*[answered.order(timeout=60)] * 3)
    answered.run()
    tokens = answered.tokens()
    answered.command("ack", tokens[0, 1])
    answered.command("fail", tokens[1, 1], "--reason", "no stock")
    answered.command("renew", tokens[2, 1], "1h")
    assert answered.run(61)["answers"] == {"acked": 1, "failed": 1, "renewed": 1}
    assert answered.pending() == {"retry": 1, "dead_letter": 0, "in_flight": 1, "held_back": 0}
    (failed,) = [row for row in lane.table("outcomes") if row["error_class"]]
    assert (failed["error_class"], failed["error_message"], failed["answer"]) == ("AckFailed", "no stock", "fail")
    answered.run()
    answered.command("fail", answered.tokens()[1, 2])
    answered.command("ack", tokens[2, 1])
    answered.run()
    answered.run()
    assert [dict(letter.headers)["ackline.error_class"] for letter in lane.letters()] == [b"AckFailed"]
    assert lane.committed() == 3
    lane.judge(settled=True)


STEPS = [
    {"name": "first", "handler": "tests.spark.tree_handlers:work", "input": "source", "group_by": "key"},
    {"name": "meet", "handler": "tests.spark.tree_handlers:join", "input": "first", "group_by": "key", "join": True},
    {"name": "sums", "handler": "tests.spark.tree_handlers:end", "input": "meet.sums"},
]


@pytest.mark.parametrize("isolation", ["none", pytest.param("process", marks=pytest.mark.deep)])
def test_s60_s65_s69_with_steps_the_worst_of_tree_and_answer_counts(
    lab: MakeLab, broker: Broker, isolation: str
) -> None:
    handlers: dict[str, Any] = {"handler": "tests.spark.tree_handlers:split_and_hand_on", "steps": STEPS}
    answered = Answered(lab, broker, **handlers, handler_isolation=isolation)
    lane = answered.lane
    lane.journalled = False

    def order(*does: str) -> dict[str, Any]:
        return {"wait": str(answered.file), "items": [{"key": f"k{n}", "do": do} for n, do in enumerate(does)]}

    lane.produce(
        order("ack", "ack"), order("ack", "skip"), order("ack", "fail"), order("dead"), order("hold"), order(),
        order("ack"), {"items": [{"key": "k0", "do": "ack"}]},
    )  # fmt: skip
    first = answered.run()
    assert first["outcomes"] == {"acked": 1, "dead": 1, "failed": 3, "in_flight": 4}
    assert answered.pending() == {"retry": 2, "dead_letter": 0, "in_flight": 4, "held_back": 0}
    rows = {row["offset"]: row for row in lane.table("outcomes")}
    kept = rows[1]["error_class"], rows[1]["error_message"], rows[2]["error_message"], rows[4]["error_class"]
    assert kept == ("Skip", "step first: unwanted", "step first: broken; 1 sibling acked", "Unacked")
    status = json.loads(answered.command("status", lane.name, "--json"))
    source = status["steps"][0]
    assert (source["step"], source["executed"], source["acked"], source["failed"]) == ("source", 8, 1, 3)
    story = answered.command("explain", lane.name, lane.topic, "0", "1")
    assert "Attempt 1 is in flight, and was skipped in step first: Skip; its tuple at first was acked" in (
        " ".join(story.split())
    )
    for offset in (0, 1, 2, 4, 5):  # the attempts at 2 and 4 have failed by their trees
        answered.answer(offset)
    second = answered.run(5)
    assert second["answers"] == {"acked": 3, "stale": 2}
    third = answered.run(6)
    assert third["answers"]["timed_out"] == 1
    answered.run()
    outcomes = {(row.offset, row.attempt): row.outcome for row in lane.rows() if row.outcome != "in_flight"}
    assert [outcomes[offset, 1] for offset in range(8)] == [
        "acked", "skipped", "failed", "failed", "failed", "acked", "failed", "acked",
    ]  # fmt: skip
    lane.judge()
