"""What the driver checks of its executors before records are handed out, and what it does until it sees their files."""

import socket
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from pyspark import SparkConf, SparkContext

from ackline.delta.folder import Folder
from ackline.errors import ConfigError, FatalError
from ackline.ledger.offsets import TopicPartition
from ackline.spark.job import check_replay, run_replay
from ackline.spark.probe import WAIT_SECONDS_ONCE, wait_until_sized
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
