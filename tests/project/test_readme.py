"""The README's first pipeline without a broker: its file is valid, and its data show what its comments name."""

import re
from collections import Counter, defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from ackline.handler import Dead, Record, Skip
from ackline.local.dev import PARTITIONS
from ackline.local.events import OrderEvent, orders
from ackline.pipeline.pipeline import Pipeline, load
from tests.e2e.commands import ROOT
from tests.e2e.documents import Block, blocks, section

ATTEMPTS = 3


def _blocks() -> dict[str, Block]:
    """Returns the blocks of the four first steps, by their language; of the commands, those of the last step."""
    return {block.language: block for block in blocks(section("README.md", "## A first pipeline of your own"))[:4]}


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    path = tmp_path / "first.yaml"
    path.write_text(_blocks()["yaml"].text)
    return load(path)


@pytest.fixture
def handler() -> Any:
    names: dict[str, Any] = {}
    exec(_blocks()["python"].text, names)  # noqa: S102
    return names["handle"]


def outcome(handler: Any, event: OrderEvent, attempt: int) -> str:
    try:
        handler(Record("orders", 0, 0, datetime.now(UTC), event.key, event.value, (), attempt))
    except (Skip, Dead) as error:
        return type(error).__name__
    except Exception as error:
        return f"failed: {type(error).__name__}"
    return "acked"


def test_the_readme_is_read_in_ten_minutes() -> None:
    assert len((ROOT / "README.md").read_text().split()) <= 2_000


def test_the_data_show_skip_dead_and_retries_that_succeed_and_that_do_not(handler: Any, pipeline: Pipeline) -> None:
    assert pipeline.retry.max_retries == ATTEMPTS - 1
    stories = Counter(
        tuple(outcome(handler, event, attempt) for attempt in range(1, ATTEMPTS + 1))
        for event in orders(1000)
        if event.value is not None  # the pipeline skips tombstones
    )
    assert stories["Skip",] == 0
    assert stories["Skip", "Skip", "Skip"] > 50
    assert stories["Dead", "Dead", "Dead"] > 0
    assert stories["failed: TimeoutError", "acked", "acked"] > 5
    assert stories[("failed: JSONDecodeError",) * ATTEMPTS] > 0
    assert stories["acked", "acked", "acked"] > 500


def test_the_record_of_the_last_comment_fails_at_each_attempt(handler: Any) -> None:
    [partition, offset] = re.findall(r"audit first --partition (\d+) --offsets (\d+)", _blocks()["sh"].text)[0]
    logs = defaultdict(list)
    for event in orders(1000):
        logs[(_murmur2(event.key) & 0x7FFFFFFF) % PARTITIONS].append(event)
    event = logs[int(partition)][int(offset)]
    assert [outcome(handler, event, attempt) for attempt in (1, 2, 3)] == ["failed: JSONDecodeError"] * ATTEMPTS


def test_the_first_skipped_records_are_orders_in_pounds_and_orders_that_were_erased(handler: Any) -> None:
    """The rows of a turn are sorted by partition and offset."""
    (limit,) = re.findall(
        r"audit first --outcome skipped --limit (\d+) +# the orders in pounds, and", _blocks()["sh"].text
    )
    log = [event for event in orders(1000) if (_murmur2(event.key) & 0x7FFFFFFF) % PARTITIONS == 0]
    skipped = ["erased" if event.value is None else outcome(handler, event, 1) for event in log]
    assert set([each for each in skipped if each in ("erased", "Skip")][: int(limit)]) == {"erased", "Skip"}


def test_the_comment_on_the_delays_is_what_the_policy_does(pipeline: Pipeline) -> None:
    policy = pipeline.retry.policy_of_numbers()
    failed_at = datetime(2026, 1, 1, tzinfo=UTC)
    due = [policy.next_attempt(attempts, failed_at, "ValueError", "seed") for attempts in (1, 2, 3)]
    assert [time and (time - failed_at).total_seconds() for time in due] == [0, 1, None]
    assert "at once, then after 1 s" in _blocks()["yaml"].text


def _murmur2(data: bytes) -> int:
    """The hash by which Kafka's clients choose the partition of a key."""
    mix, mask, length = 0x5BD1E995, 0xFFFFFFFF, len(data)
    value = (0x9747B28C ^ length) & mask
    for start in range(0, length - length % 4, 4):
        part = int.from_bytes(data[start : start + 4], "little") * mix & mask
        value = (value * mix & mask) ^ ((part ^ part >> 24) * mix & mask)
    if rest := data[length - length % 4 :]:
        value = (value ^ int.from_bytes(rest, "little")) * mix & mask
    value = (value ^ value >> 13) * mix & mask
    return value ^ value >> 15
