"""What the driver checks of its executors before records are handed out, and what it does until it sees their files."""

import socket
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import cast

import pytest
from pyspark import SparkConf, SparkContext

from ackline.delta.folder import Folder
from ackline.errors import ConfigError, FatalError
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.outcomes import Outcome
from ackline.spark import probe
from ackline.spark.application import Application, ProbeTask
from ackline.spark.job import check_replay, run_replay
from ackline.spark.probe import WAIT_SECONDS_ONCE, wait_until_sized
from ackline.worker.settings import KafkaSettings, ReplaySettings
from tests.spark.lab import Lab

NO_TOPIC = {TopicPartition("no-topic", 0): (0, 1)}
JOURNAL = "tests.support.journal:handle"


def files_of_probes(lab: Lab) -> list[Path]:
    return list(Path(lab.table.uri).parent.glob(".[pt]*/**/*"))


def test_executors_that_can_handle_the_records_pass_and_nothing_is_left(lab: Lab) -> None:
    check_replay(lab.spark, lab.job("ack", NO_TOPIC))
    assert files_of_probes(lab) == []


def test_a_module_that_executors_do_not_have_is_named_with_the_host(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("only_in_the_driver")
    module.handle = lambda record: None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "only_in_the_driver", module)
    with pytest.raises(ConfigError, match="No module named 'only_in_the_driver'") as refused:
        check_replay(lab.spark, lab.job("only_in_the_driver:handle", NO_TOPIC))
    assert f"the executor on {socket.gethostname()}: " in str(refused.value)
    assert "no record was handed out" in str(refused.value)


def test_executors_that_do_not_see_what_the_driver_wrote_are_refused(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Folder, "write", lambda *_: None)  # in this process, not in those of the tasks
    with pytest.raises(ConfigError, match="executors and driver do not share ACKLINE_AUDIT"):
        check_replay(lab.spark, lab.job("ack", NO_TOPIC))
    assert files_of_probes(lab) == []


def test_a_file_of_the_connection_that_executors_can_not_read_is_named(lab: Lab) -> None:
    job = lab.job("ack", NO_TOPIC, kafka={"ssl.keystore.location": "/no/such/client.p12"})
    with pytest.raises(ConfigError, match=r"client\.p12 of `ssl\.keystore\.location` can't be read"):
        check_replay(lab.spark, job)


def test_i7_dynamic_allocation_that_spark_s_own_files_turn_on_is_refused_at_most_once(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    conf = SparkConf().set("spark.dynamicAllocation.enabled", "true")
    monkeypatch.setattr(SparkContext, "getConf", lambda _: conf)
    with pytest.raises(ConfigError, match=r"`spark\.dynamicAllocation\.enabled` is on: at most once"):
        check_replay(lab.spark, lab.job("ack", NO_TOPIC, once=True))


def test_i7_a_stage_that_spark_submits_anew_hands_nothing_out_again(lab: Lab) -> None:
    """Its tasks have attempt number 0; only their markers show that their parts were started before."""
    tp = lab.fill(100)
    job = lab.job(JOURNAL, {tp: (0, 100)}, once=True)
    run_replay(lab.spark, job)
    with pytest.raises(FatalError, match="Spark tried a task again under at_most_once"):
        run_replay(lab.spark, job)
    assert set(lab.calls(tp.topic).values()) == {1}


def test_i7_a_handler_in_a_process_of_its_own_is_imported_before_the_marker_is_created(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an import that fails, another executor may take the part."""
    module = ModuleType("only_in_the_driver")
    module.handle = lambda record: None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "only_in_the_driver", module)
    tp = lab.fill(10)
    job = lab.job("only_in_the_driver:handle", {tp: (0, 10)}, once=True, isolated=True)
    with pytest.raises(ConfigError, match=r"the executor on \S+: .*only_in_the_driver"):
        run_replay(lab.spark, job)
    assert files_of_probes(lab) == []


# -- clocks


class Executors:
    """An application whose tasks run in this process, on hosts whose clocks differ from the driver's by `skews`. The
    first round of the probe takes as long as `starts`, by the clock of the driver."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *skews: float, starts: float = 0.0) -> None:
        self.skews, self.starts, self.rounds, self.now = skews, starts, 0, 1e9
        monkeypatch.setattr("time.time", lambda: self.now)

    def wait_for_executors(self, sleep: object) -> None:
        """They are there."""

    def executors(self) -> int:
        return len(self.skews)

    def ask(self, task: ProbeTask) -> list[tuple[object, ...]]:
        self.now += self.starts if not self.rounds else 0.1
        self.rounds += 1
        return [(f"host-{n}", *next(task([0]))[1:4], self.now + skew) for n, skew in enumerate(self.skews)]


def clocks(executors: Executors, folder: Path, most: float = 5.0) -> None:
    settings = ReplaySettings(JOURNAL, False, Outcome.FAILED, None)
    kafka = KafkaSettings({}, "read_committed")
    probe.probe_executors(cast(Application, executors), str(folder), settings, kafka, False, most)


@pytest.mark.parametrize(("skew", "words"), [(-600, "600 s behind"), (600, "600 s ahead of"), (-6, "6 s behind")])
def test_an_executor_whose_clock_differs_by_more_than_a_few_seconds_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, skew: float, words: str
) -> None:
    """By a clock ten minutes behind, each record in flight times out in its own turn, and no backoff waits."""
    with pytest.raises(ConfigError, match=rf"executor on host-1 is at least {words} the driver's") as refused:
        clocks(Executors(monkeypatch, 0, skew), tmp_path)
    assert refused.value.key == "spark.max_clock_skew"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("skew", "most"), [(-4.9, 5), (4.9, 5), (-600, 700)])
def test_a_clock_within_the_setting_is_taken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, skew: float, most: float
) -> None:
    clocks(Executors(monkeypatch, skew), tmp_path, most)


def test_executors_that_are_slow_to_start_hide_no_difference(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    executors = Executors(monkeypatch, -9, starts=20)
    with pytest.raises(ConfigError, match="9 s behind"):
        clocks(executors, tmp_path)
    slow = Executors(monkeypatch, 0, starts=20)
    clocks(slow, tmp_path)
    assert (executors.rounds, slow.rounds) == (2, 2)


# -- files that tasks have named


class Time:
    """A clock that only sleeping moves; at `at` seconds it calls `then`."""

    def __init__(self, at: float = 0, then: Callable[[], object] = lambda: None) -> None:
        self.now, self.at, self.then = 0.0, at, then

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        if self.now >= self.at:
            self.then()


def test_files_that_are_there_are_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12")
    time = Time()
    wait_until_sized(str(tmp_path), {"a": 2}, time, time.sleep)
    assert time.now == 0


@pytest.mark.parametrize("before", [None, b"", b"1"])
def test_a_file_that_comes_late_or_grows_late_is_waited_for(tmp_path: Path, before: bytes | None) -> None:
    file = tmp_path / "day" / "a"
    file.parent.mkdir()
    if before is not None:
        file.write_bytes(before)
    time = Time(40, lambda: file.write_bytes(b"12"))
    wait_until_sized(str(tmp_path), {"day/a": 2}, time, time.sleep)
    assert 40 <= time.now < 60


def test_at_most_once_a_file_is_waited_for_longer_because_its_records_are_not_handled_again(tmp_path: Path) -> None:
    time = Time(200, lambda: (tmp_path / "a").write_bytes(b"12"))
    wait_until_sized(str(tmp_path), {"a": 2}, time, time.sleep, WAIT_SECONDS_ONCE)
    assert 200 <= time.now < 260


def test_a_file_that_never_comes_is_an_error_after_a_minute(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12")
    time = Time()
    with pytest.raises(ConfigError, match="executors and driver do not share ACKLINE_AUDIT") as refused:
        wait_until_sized(str(tmp_path), {"a": 2, "b": 3}, time, time.sleep)
    assert 60 <= time.now < 65
    assert f"{tmp_path}/b with 3 bytes" in str(refused.value)
    assert "Set ACKLINE_AUDIT to a folder that all machines mount" in str(refused.value)


def test_a_stale_answer_of_the_file_system_is_asked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(b"12")
    answers: list[OSError | dict[str, int]] = [OSError(116, "Stale file handle"), {"a": 2}]

    def sizes(*_: object) -> dict[str, int]:
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    monkeypatch.setattr(Folder, "sizes", sizes)
    time = Time()
    wait_until_sized(str(tmp_path), {"a": 2}, time, time.sleep)
    assert (answers, time.now) == ([], 1)


def test_a_file_of_another_size_is_not_the_task_s(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"123")
    time = Time()
    with pytest.raises(ConfigError, match="has 3 bytes here"):
        wait_until_sized(str(tmp_path), {"a": 2}, time, time.sleep)
