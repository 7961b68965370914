"""`ackline init` and `ackline adopt` on a real broker: what they write passes doctor, plan, a run and its own test."""

import json
import os
import sys
import uuid
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from ackline.local import events
from ackline.local.broker import Broker
from tests.e2e.commands import ROOT, Finished, run_as_process, run_in_session


class Project:
    """An empty project beside the session's broker, with a topic of 200 orders."""

    def __init__(self, broker: Broker, folder: Path) -> None:
        self.bootstrap, self.folder = broker.bootstrap, folder
        self.topic = f"shop.orders-{uuid.uuid4().hex[:8]}"
        broker.create_topic(self.topic, 3)
        broker.create_topic(f"{self.topic}.dead")
        events.produce_orders(broker.bootstrap, self.topic, events.orders(200))
        self.environment = {
            "ACKLINE_PIPELINES": str(folder / "include" / "pipelines"), "ACKLINE_AUDIT": str(folder / "audit"),
        }  # fmt: skip

    def ackline(self, *arguments: str) -> Finished:
        """Runs a command as a process of its own: this one has imported the project's package `handlers`."""
        return run_as_process(arguments, self.environment)

    def json(self, *arguments: str) -> object:
        done = self.ackline(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def passes_doctor_plan_and_its_test(self, name: str) -> None:
        checks = self.json("doctor", name)
        assert isinstance(checks, list)
        assert [check for check in checks if not check["ok"]] == []
        planned = self.json("plan", name)
        assert isinstance(planned, dict)
        assert sum(part["end"] - part["start"] for part in planned["partitions"]) > 0
        [test] = (self.folder / "tests").glob("test_*.py")
        done = run_in_session(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(self.folder), str(test)],
            {**os.environ, **self.environment, "PYTHONPATH": str(ROOT / "include")},
            self.folder,
            seconds=240,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def commits(self) -> dict[int, int]:
        """Makes a consumer group that has committed 10 records of each of two partitions, and returns the commits."""
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": self.group})
        consumer.commit(offsets=[TopicPartition(self.topic, number, 10) for number in (0, 1)], asynchronous=False)
        consumer.close()
        return self.committed()

    def committed(self) -> dict[int, int]:
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": self.group})
        answer = consumer.committed([TopicPartition(self.topic, number) for number in range(3)], timeout=30)
        consumer.close()
        return {tp.partition: tp.offset for tp in answer}

    @property
    def group(self) -> str:
        return f"app-{self.topic}"


@pytest.fixture
def project(broker: Broker, tmp_path: Path) -> Project:
    return Project(broker, tmp_path)


def test_what_init_writes_passes_doctor_plan_and_its_own_test(project: Project) -> None:
    done = project.ackline("init", "--bootstrap-servers", project.bootstrap, "--topic", project.topic, "--name", "shop")
    assert done.returncode == 0, done.stderr
    assert "3 partitions, 200 offsets" in done.stdout
    assert "JSON objects" in done.stdout
    handler = (project.folder / "include" / "handlers" / "shop.py").read_text()
    for text in (done.stdout, handler):
        assert "o-000" not in text
        assert "teapot" not in text
    project.passes_doctor_plan_and_its_test("shop")
    again = project.ackline(
        "init", "--bootstrap-servers", project.bootstrap, "--topic", project.topic, "--name", "shop"
    )
    assert again.returncode == 2
    assert "is not overwritten" in again.stderr


def test_adopt_goes_on_from_the_group_s_commits_and_changes_nothing_in_kafka(project: Project) -> None:
    committed = project.commits()
    done = project.ackline("adopt", project.group, "--bootstrap-servers", project.bootstrap, "--name", "shop")
    assert done.returncode == 0, done.stderr
    assert "has 180 offsets to read" in done.stdout
    assert "1 of 3 partitions have no commit" in done.stdout
    assert project.committed() == committed
    project.passes_doctor_plan_and_its_test("shop")
    planned = project.json("plan", "shop")
    assert isinstance(planned, dict)
    assert {part["partition"]: part["start"] for part in planned["partitions"]} == {0: 10, 1: 10, 2: 0}


def test_a_topic_or_group_that_does_not_exist_is_refused_with_what_there_is(project: Project) -> None:
    for arguments, reason in (
        (("init", "--topic", "no-such-topic"), "it does not exist; the broker has: "),
        (("init",), "--topic is missing"),
        (("adopt", "no-such-group"), "has committed no offset of a topic that exists; it has no live members"),
    ):
        done = project.ackline(*arguments, "--bootstrap-servers", project.bootstrap)
        assert (done.returncode, done.stdout) == (2, "")
        assert reason in done.stderr
    assert not (project.folder / "include").exists()
