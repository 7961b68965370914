"""Every command of docs/runbook.md, executed as it is printed on a lane in the state that its section describes."""

import re
import shlex
import shutil
from collections.abc import Callable

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.e2e import wire
from tests.e2e.documents import blocks, comments_removed, section
from tests.e2e.fixtures import MakeLab
from tests.e2e.lab import Lab

RUNBOOK = "docs/runbook.md"


def failing(lane: Lab) -> None:
    """Offset 1 fails at its first two attempts, and waits for an hour."""
    lane.configure(retry={"initial_delay": "1h", "period": "1h"})
    lane.produce_records(5, {1: {"fail": 2}})
    lane.run()


def dead_lettered(lane: Lab) -> None:
    """A deploy has made each record dead; the handler that is deployed now acks."""
    lane.configure(retry={"max_retries": 0}, handler="tests.e2e.handlers:quotes_the_record")
    lane.produce_records(5)
    lane.run()
    lane.configure(handler="tests.support.journal:handle")
    lane.produce_records(2)


def deleted(lane: Lab) -> None:
    """The topic is gone."""
    failing(lane)
    wire.delete_topic(lane.broker.bootstrap, lane.topic)


def acked(lane: Lab) -> None:
    """All records are acked, and the group of some consumers has commits of its own."""
    lane.produce_records(5)
    lane.run()
    consumer = Consumer({"bootstrap.servers": lane.broker.bootstrap, "group.id": f"{lane.name}-app"})
    consumer.commit(offsets=[TopicPartition(lane.topic, 0, 2)], asynchronous=False)
    consumer.close()


def ledger_lost(lane: Lab) -> None:
    """The folder of the tables is gone, and the group has the commit of the ledger that was in it."""
    acked(lane)
    shutil.rmtree(lane.audit)


def restored(lane: Lab) -> None:
    """The folder of the tables is the copy from before the last run."""
    lane.produce_records(3)
    lane.run()
    shutil.copytree(lane.audit, f"{lane.audit}.copy")
    lane.produce_records(2)
    lane.run()
    shutil.rmtree(lane.audit)
    shutil.move(f"{lane.audit}.copy", lane.audit)


def with_lag(lane: Lab) -> None:
    """A retry is due, and new records wait."""
    lane.produce_records(5, {1: {"fail": 1}})
    lane.run()
    lane.produce_records(5)


STATES: dict[str, Callable[[Lab], None]] = {
    "The floor does not move": failing,
    "Skip this one": failing,
    "A topic is gone": deleted,
    "A bad deploy dead-lettered 10,000 records": dead_lettered,
    "Replay yesterday": acked,
    "Move the group": acked,
    "The audit folder is gone": ledger_lost,
    "A backup was restored": restored,
    "Retention is about to win": with_lag,
}


def commands(heading: str) -> list[str]:
    """Returns the commands of a section."""
    shell = [block for block in blocks(section(RUNBOOK, f"## {heading}")) if block.language == "sh"]
    return [line for block in shell for line in comments_removed(block.text)]


def on_lane(lane: Lab, line: str) -> list[str]:
    """Returns the arguments of a command of the runbook, for the pipeline of a lab."""
    line = re.sub(r"\borders-app\b", f"{lane.name}-app", line).replace("orders-taken-over", f"{lane.name}-taken")
    line = line.replace("--topic orders", f"--topic {lane.topic}")
    line = re.sub(r"\borders\b", lane.name, line).replace("127.0.0.1:9092", lane.broker.bootstrap)
    return shlex.split(line)[1:]


def test_each_section_of_the_runbook_has_commands_and_a_state() -> None:
    headings = re.findall(r"^## (.+)$", "\n" + section(RUNBOOK, "# Runbook"), re.MULTILINE)
    assert headings == list(STATES)
    for heading in headings:
        assert all(line.startswith("ackline ") for line in commands(heading)), heading
        assert commands(heading), heading


@pytest.mark.parametrize("heading", STATES)
def test_the_commands_of_the_runbook_work(lab: MakeLab, heading: str) -> None:
    lane = lab()
    STATES[heading](lane)
    for line in commands(heading):
        lane.judged = False
        done = lane.ackline(*on_lane(lane, line))
        # The doctor fails where a run would.
        stops = STATES[heading] in (ledger_lost, restored) and line.startswith("ackline doctor")
        assert done.returncode == int(stops), f"{line}\n{done.stderr}"
    lane.judged = STATES[heading] in (ledger_lost, restored, deleted)  # the evidence of some turns is gone
