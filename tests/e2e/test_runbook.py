"""Every command of docs/runbook.md, executed as it is printed on a lane in the state that its section describes."""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
import yaml
from confluent_kafka import Consumer, TopicPartition

from tests.e2e import wire
from tests.e2e.documents import blocks, comments_removed, section
from tests.e2e.fixtures import MakeLab
from tests.e2e.handlers import PRICED
from tests.e2e.lab import Lab
from tests.e2e.shop import item, order, rows_of, shop

RUNBOOK = "docs/runbook.md"


def failing(lane: Lab) -> None:
    """Offset 1 fails at its first two attempts, and waits for an hour."""
    lane.configure(retry={"initial_delay": "1h", "period": "1h"})
    lane.produce_records(5, {1: {"fail": 2}})
    lane.run()


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


def sold(lane: Lab) -> None:
    """As before, and each record has a row of the output table."""
    lane.configure(handler="tests.e2e.handlers:emit", outputs=[{"from": "source", "table": "order_totals"}])
    acked(lane)


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
    "No run for three intervals": acked,
    "Skip this one": failing,
    "A topic is gone": deleted,
    "Try a deploy on a few records": acked,
    "Replay yesterday": sold,
    "Move the group": acked,
    "The audit folder is gone": ledger_lost,
    "A backup was restored": restored,
    "Retention is about to win": with_lag,
}


BACKUP, INCIDENT = "Back up and restore", "A bad deploy"
"""The sections whose blocks are run one by one, with what happens between them."""
KAFKA_TOOLS = "A transaction stays open"
"""The section whose commands are Kafka's own."""


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
    assert [heading for heading in headings if heading not in (BACKUP, INCIDENT, KAFKA_TOOLS)] == [*STATES]
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


def bad_deploy(lane: Lab, deploy: Callable[[str], None]) -> None:
    """The code v1 has come after v0, and has handled 400 records in two turns: 10 of its 20 failures are dead, and four
    records were acked wrongly. One record died before the deploy, and 300 are not read yet."""
    lane.advance_clock(-3 * 3600)
    for code, values in (
        ("v0", [{"n": n, "dead": n == 3} for n in range(100)]),
        ("v1", [{"n": n} for n in range(200)]),
        ("v1", [{"n": n} for n in range(200)]),
    ):
        deploy(code)
        lane.produce(*values)
        lane.run()
        lane.advance_clock(3600 + 60)
    lane.produce(*[{"n": n} for n in range(300)])


def test_a_bad_deploy_is_found_stopped_mended_and_proved_by_ten_commands_of_the_runbook(
    lab: MakeLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each record that the bad code failed, gave up or acked wrongly is right in the end, and no other is touched."""
    lane = lab(handler="tests.e2e.handlers:prices", retry={"initial_delay": "1h", "max_retries": 1})
    deploy = partial(monkeypatch.setenv, "ACKLINE_CODE")
    bad_deploy(lane, deploy)
    beside = f"{lane.name}-beside"
    kafka = {**lane.settings["kafka"], "group_id": beside, "topics": [beside]}
    lane.broker.create_topic(beside)
    lane.file.with_name(f"{beside}.yaml").write_text(yaml.safe_dump({**lane.settings, "name": beside, "kafka": kafka}))
    assert lane.ackline("run", beside).returncode == 0

    def done(line: str) -> str:
        line = line.replace("handlers.orders", "tests.e2e.handlers").replace("3f2a90c1d4e7", "v1")
        finished = lane.ackline(*on_lane(lane, line.replace("orders 3 1041", "orders 0 100")))
        assert finished.returncode == 0, finished.stderr
        return finished.stdout

    def wrong() -> int:
        return [price for (topic, _), price in PRICED.items() if topic == lane.topic].count("wrong")

    text = " ".join(section(RUNBOOK, f"## {INCIDENT}").split())
    (explain_record,) = re.findall(r" `(ackline explain orders orders [^`]*)`", text)
    redrives = re.findall(r" `(ackline (?:backfill|dead) [^`]*)`", text)
    status, history, pause, explain, tried, resume, canary, retry, resume_all, backfill = commands(INCIDENT)
    problem, _, first = done(status).splitlines()[:3]
    assert first.split()[:2] == [lane.name, "failing"]
    assert problem == f"{lane.name}: {lane.topic}[0]: 5.0% of the last new records failed."
    began = [line.split()[-1] for line in done(history).splitlines() if "5.0% of 200" in line]
    assert began == ["v1", "v1"]
    assert "first seen in turn 2, the first with code v1." in done(explain_record)
    assert done(pause) == f"{lane.name}: 1 partition paused\n{beside}: 1 partition paused\n"
    assert "Retention may take offset 300 from " in done(explain)
    deploy("v2")
    assert done(tried).count(": acked") == 20
    assert "resume:" in done(resume)
    assert "200 handler calls (200 acked)" in done(canary)
    assert "10 retries are due now" in done(retry)
    assert f"{beside}: 1 partition resumed" in done(resume_all)
    assert "nothing is pending" in done("ackline run orders"), "a run of the schedule"
    for redrive in redrives:
        assert "would read 10 offsets" in done(redrive.replace("--yes", "--dry-run"))
    assert (len(redrives), wrong()) == (2, 4)
    assert "390 offsets asked = 390 acked. It is settled." in done(backfill)
    assert wrong() == 0
    assert {call.attempt for call in lane.calls() if call.offset < 100} == {1}, "of the code before"
    assert lane.new_offsets().count(3) == 1
    later = datetime.now(UTC) + timedelta(hours=2)
    of_lane, *_ = (each for each in lane.ackline_json("status", "--now", later.isoformat())["pipelines"])
    assert (of_lane["pipeline"], of_lane["state"], of_lane["pending"]) == (lane.name, "up to date", 0)
    lane.judge(settled=True)
