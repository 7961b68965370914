"""What the driver does until it sees the files that its tasks have named."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ackline.errors import ConfigError
from ackline.ledger.outcomes import Outcome
from ackline.spark.probe import WAIT_SECONDS_ONCE, wait_until_visible
from ackline.tables.folder import SharedFolder
from ackline.worker.files import WrittenFile


def written(path: str, size: int) -> WrittenFile:
    return WrittenFile(path, size, 1, Outcome.ACKED, "{}", 0)


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
    wait_until_visible(str(tmp_path), [written("a", 2), written("", 0)], time, time.sleep)
    assert time.now == 0


@pytest.mark.parametrize("before", [None, b"", b"1"])
def test_a_file_that_comes_late_or_grows_late_is_waited_for(tmp_path: Path, before: bytes | None) -> None:
    file = tmp_path / "day" / "a"
    file.parent.mkdir()
    if before is not None:
        file.write_bytes(before)
    time = Time(40, lambda: file.write_bytes(b"12"))
    wait_until_visible(str(tmp_path), [written("day/a", 2)], time, time.sleep)
    assert 40 <= time.now < 60


def test_at_most_once_a_file_is_waited_for_longer_because_its_records_are_not_handled_again(tmp_path: Path) -> None:
    time = Time(200, lambda: (tmp_path / "a").write_bytes(b"12"))
    wait_until_visible(str(tmp_path), [written("a", 2)], time, time.sleep, WAIT_SECONDS_ONCE)
    assert 200 <= time.now < 260


def test_a_file_that_never_comes_is_an_error_after_a_minute(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12")
    time = Time()
    with pytest.raises(ConfigError, match="executors and driver do not share ACKLINE_AUDIT") as refused:
        wait_until_visible(str(tmp_path), [written("a", 2), written("b", 3)], time, time.sleep)
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

    monkeypatch.setattr(SharedFolder, "sizes", sizes)
    time = Time()
    wait_until_visible(str(tmp_path), [written("a", 2)], time, time.sleep)
    assert (answers, time.now) == ([], 1)


def test_a_file_of_another_size_is_not_the_task_s(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"123")
    time = Time()
    with pytest.raises(ConfigError, match="has 3 bytes here"):
        wait_until_visible(str(tmp_path), [written("a", 2)], time, time.sleep)
