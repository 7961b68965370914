"""Settings: which may change between turns and while one is open, and how those in force are shown."""

from dataclasses import replace
from typing import Any

import pytest

from ackline.errors import ConfigError
from ackline.lane.adapters import effective_settings
from ackline.ledger.turns import Plan, TurnKind
from ackline.steps import plan as steps_plan
from ackline.steps import replay
from tests.support.memory_adapters import no_session
from tests.support.memory_lane import AT_MOST_ONCE, DEAD, FAILS, NO_GUARANTEE, OK, MemoryLane


@pytest.mark.parametrize(
    "change", [{"guarantee": AT_MOST_ONCE}, {"guarantee": NO_GUARANTEE}, {"kafka": {"isolation": "read_uncommitted"}}]
)
def test_guarantee_and_isolation_may_change_while_nothing_is_pending(change: dict[str, Any]) -> None:
    lane = MemoryLane(OK).after_run()
    lane.settings |= change
    lane.produce(OK)
    lane.run()
    assert (lane.committed(), lane.calls()) == (2, [(0, 1), (1, 1)])


def test_no_action_is_planned_under_a_guarantee_that_was_changed_while_records_are_pending() -> None:
    """Its plan's settings would pass for those under which the record was planned."""
    lane = MemoryLane(FAILS, retry={"initial_delay": "1h"}).after_run()
    lane.settings["guarantee"] = AT_MOST_ONCE
    with pytest.raises(ConfigError, match=r"guarantee was changed.* while records are pending"):
        lane.perform(TurnKind.PAUSE)
    assert (lane.newest().turn.n, lane.calls()) == (1, [(0, 1)])


def test_i19_another_secret_of_the_keys_is_refused_while_records_are_pending_or_a_turn_is_open() -> None:
    """Under another secret a key has another hash, so a later record would not wait for the one that failed."""
    by_key: dict[str, Any] = {"order": "key", "audit": {"key_hash": True}, "retry": {"initial_delay": "1h"}}
    lane = MemoryLane(FAILS, **by_key)

    def plan(secret: bytes) -> Plan | None:
        return steps_plan.plan(lane.adapters(key_hash_secret=secret)).plan

    plan(b"the first secret")
    with pytest.raises(ConfigError, match=r"key_hash_secret was changed from one with the id .* is open; .*void"):
        replay.replay(lane.adapters(key_hash_secret=b"another secret"), no_session)
    lane.run(lane.adapters(key_hash_secret=b"the first secret"))
    with pytest.raises(ConfigError, match=r"key_hash_secret was changed .* while records are pending"):
        plan(b"another secret")
    lane.settings |= {"order": "none"}
    assert plan(b"another secret") is not None


def test_changed_steps_are_refused_while_a_turn_is_open_and_other_handlers_are_not() -> None:
    """The source of the file would emit to streams that no step of the plan takes: its records would fail, or drop."""
    step = {"name": "price", "handler": "a:price", "input": "source.items", "group_by": "key"}
    lane = MemoryLane(OK, steps=[step]).after_plan()
    lane.settings["steps"] = [step | {"input": "source.lines"}]
    with pytest.raises(ConfigError, match=r"steps was changed from price to price while .* is open; .*ackline void"):
        lane.replay()
    lane.settings["steps"] = [step | {"handler": "a:other"}]
    lane.run()
    assert lane.settled().counts == {"acked": 1}


def test_an_error_that_a_changed_file_can_not_mend_names_the_way_out() -> None:
    lane = MemoryLane(OK, outputs=[{"from": "source", "topic": "out"}])
    lane.create("out")
    lane.plan()
    del lane.world.topics["out"]
    lane.settings["outputs"] = None
    with pytest.raises(ConfigError, match=r"out of .* does not exist.* by the settings of its plan.*ackline void"):
        lane.replay()


def test_an_open_turn_of_a_backfill_whose_settings_can_not_be_read_names_the_way_out_with_its_lane() -> None:
    lane = MemoryLane(OK)
    plan = lane.plan()
    plan = replace(plan, turn=plan.turn._replace(lane="backfill-b"), settings={**plan.settings, "retry": 1})
    with pytest.raises(ConfigError, match=r"that planned it\. .*`ackline void lane --lane backfill-b --reason …`"):
        lane.adapters().of_turn(plan)


def test_outputs_that_are_added_to_the_file_under_an_open_turn_wait_for_the_next_turn() -> None:
    """The open turn keeps no rows of outcomes, so no staged row would be found to be of an acked record."""
    lane = MemoryLane(OK, guarantee=NO_GUARANTEE, record_outcomes=False, dead_letter="none").after_plan()
    lane.settings |= {"record_outcomes": True, "outputs": [{"from": "source", "table": "totals"}]}
    jobs: list[Any] = []
    adapters = lane.adapters()

    def run_job(spark: Any, job: Any, on_progress: Any) -> Any:
        jobs.append(job.settings)
        return adapters.run_job(spark, job, on_progress)

    replay.replay(replace(adapters, run_job=run_job), no_session)
    lane.settle()
    assert [(job.record_outcomes, job.topology, job.outputs) for job in jobs] == [(False, None, None)]
    assert lane.settled().counts == {"acked": 1}


@pytest.mark.parametrize(
    ("planned", "now", "letters"), [({"topic": "dead"}, "none", 1), ("none", {"topic": "dead"}, 0)]
)
def test_i6_the_plan_decides_whether_a_dead_record_of_an_open_turn_gets_a_letter(
    planned: Any, now: Any, letters: int
) -> None:
    """`ackline dead` looks for the letter in the topic of the plan."""
    lane = MemoryLane(DEAD, dead_letter=planned).after_replay()
    lane.settings["dead_letter"] = now
    lane.settle()
    assert (len(lane.letters()), lane.settled().counts) == (letters, {"failed": 1, "dead": 1})


def test_settings_in_force_are_all_of_them_on_one_line_and_properties_by_name_only() -> None:
    lane = MemoryLane(
        topics=("orders", "payments"),
        streams=[{"name": "paid", "topics": ["orders"], "handler": "a:b"}],
        kafka={"properties": {"sasl.password": "canary", "client.id": "abc"}},
    )
    adapters = lane.adapters(kafka={"bootstrap.servers": "memory", "sasl.password": "canary", "ssl.key.pem": "canary"})
    line = effective_settings(adapters)
    assert "\n" not in line
    assert "canary" not in line
    settings = line.split(" ")
    for setting in (
        "guarantee=at_least_once", "record_outcomes=true", "kafka.topics=[orders,payments]", "retry.period=60s",
        "kafka.properties=[client.id,sasl.password]", "kafka.bootstrap_servers=memory",
        "kafka.connection.properties=bootstrap.servers,sasl.password,ssl.key.pem", "streams.0.name=paid",
    ):  # fmt: skip
        assert setting in settings, line


def test_i13_the_adapters_as_text_hold_neither_the_secret_of_key_hashes_nor_a_key_of_tokens() -> None:
    adapters = MemoryLane(OK).adapters(key_hash_secret=b"hunter2", token_keys=(b"hunter2",))
    assert "hunter2" not in repr(adapters)
