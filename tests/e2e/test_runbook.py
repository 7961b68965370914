"""Every command of docs/runbook.md, executed as it is printed on a lane in the state that its section describes."""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.e2e import wire
from tests.e2e.documents import blocks, comments_removed, section
from tests.e2e.fixtures import MakeLab
from tests.e2e.lab import Lab
from tests.e2e.shop import item, order, rows_of, shop

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
    "Try a deploy on a few records": acked,
    "Replay yesterday": acked,
    "Move the group": acked,
    "The audit folder is gone": ledger_lost,
    "A backup was restored": restored,
    "Retention is about to win": with_lag,
}


BACKUP = "Back up and restore"
"""The section whose blocks are run one by one, with what happens between them."""


def commands(heading: str) -> list[str]:
    shell = [block for block in blocks(section(RUNBOOK, f"## {heading}")) if block.language == "sh"]
    return [line for block in shell for line in comments_removed(block.text)]


def on_lane(lane: Lab, line: str) -> list[str]:
    """Returns the arguments of a command of the runbook, for the pipeline of a lab."""
    line = re.sub(r"\borders-app\b", f"{lane.name}-app", line).replace("orders-taken-over", f"{lane.name}-taken")
    line = line.replace("handlers.orders", "tests.support.journal")
    line = line.replace("--topic orders", f"--topic {lane.topic}").replace("orders orders ", f"orders {lane.topic} ")
    line = re.sub(r"\borders\b", lane.name, line).replace("127.0.0.1:9092", lane.broker.bootstrap)
    return shlex.split(line)[1:]


def test_each_section_of_the_runbook_has_commands_and_a_state() -> None:
    headings = re.findall(r"^## (.+)$", "\n" + section(RUNBOOK, "# Runbook"), re.MULTILINE)
    assert [heading for heading in headings if heading != BACKUP] == list(STATES)
    for heading in STATES:
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


def run_block(lane: Lab, folder: Path, text: str) -> list[int]:
    """Runs the lines of a block in a folder, those of `ackline` in this process. Returns the exit status of each."""
    environment, done = {**os.environ, **lane.environment}, list[int]()
    for line in comments_removed(text):
        if line.startswith("ackline "):
            finished = lane.ackline(*on_lane(lane, line))
            done.append(finished.returncode)
        else:
            of_lane = re.sub(r"\borders\b", lane.name, line)
            done.append(subprocess.run(["bash", "-c", of_lane], cwd=folder, env=environment, check=False).returncode)
    return done


@pytest.mark.parametrize("group_is_gone", [False, pytest.param(True, marks=pytest.mark.deep)])
def test_a_lost_folder_is_restored_with_its_output_tables_by_the_commands_of_the_runbook(
    lab: MakeLab, tmp_path: Path, group_is_gone: bool
) -> None:
    """Each record has its row once, and the group is where the restored ledger has its floor."""
    lane = shop(lab)
    backup, restore, adopt, go_on = [
        block.text for block in blocks(section(RUNBOOK, f"## {BACKUP}")) if block.language == "sh"
    ]
    lane.produce(*(order(n, item("a", n + 1)) for n in range(3)))
    lane.run()
    assert run_block(lane, tmp_path, backup) == [0, 0, 0]
    lane.produce(*(order(n, item("a", n + 1)) for n in range(3, 5)))
    lane.run()
    shutil.rmtree(lane.tables)
    if group_is_gone:
        lane.delete_group()
    assert run_block(lane, tmp_path, restore) == [0, 0, int(not group_is_gone)]
    if not group_is_gone:
        assert run_block(lane, tmp_path, adopt) == [0, 0]
    assert run_block(lane, tmp_path, go_on) == [0, 0]
    assert sorted(row["order"] for row in rows_of(lane, "order_totals")) == [f"o{n}" for n in range(5)]
    assert lane.committed() == 5
    assert {row.outcome for row in lane.rows()} == {"acked"}
    lane.judged = True  # the evidence of the turns after the copy is gone
