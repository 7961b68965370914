"""The broker is killed and started again in the middle of a step (fault 14).

The same turn goes on, or its step fails whole and is run again.
"""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ackline.errors import AcklineError
from ackline.kafka.dead_letters import DeadLetters
from ackline.kafka.group import Group
from ackline.steps import replay
from ackline.testing.broker import Broker
from tests.e2e.lab import Lab, Spark


@pytest.fixture(scope="module")
def frail(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker that these tests may kill."""
    with Broker(tmp_path_factory.mktemp("frail")) as broker:
        yield broker


WHERE: dict[str, tuple[Any, str]] = {
    "read": (replay, "_run"),
    "dead letter": (DeadLetters, "send"),
    "commit": (Group, "commit"),
}


@pytest.mark.parametrize("where", WHERE)
def test_the_broker_is_bounced_and_nothing_is_lost_or_repeated(
    frail: Broker, tmp_path: Path, spark: Spark, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    one = Lab(frail, tmp_path, spark, retry={"max_retries": 0})
    one.records(200, {7: {"fail": -1}, 50: {"skip": True}})
    owner, name = WHERE[where]
    with monkeypatch.context() as patch:
        back = _bounced_once(frail, getattr(owner, name), patch, owner, name)
        _run_until_done(one)
        back.join(60)
    assert {row["turn"] for row in one.table("plans") if row["end_offset"] > row["start_offset"]} == {1}
    assert one.outcomes() == {"acked": 198, "skipped": 1, "failed": 1, "dead": 1}
    assert one.committed() == 200
    one.judge(settled=True)


def _bounced_once(
    broker: Broker, real: Callable[..., Any], patch: pytest.MonkeyPatch, owner: Any, name: str
) -> threading.Thread:
    """Has the broker die as the step gets there, and come back beside it."""
    back = threading.Thread(target=broker.start)

    def struck(*arguments: Any, **named: Any) -> Any:
        patch.setattr(owner, name, real)
        broker.kill()
        back.start()
        return real(*arguments, **named)

    patch.setattr(owner, name, struck)
    return back


def _run_until_done(one: Lab) -> None:
    for _ in range(5):
        try:
            one.run()
        except AcklineError:
            continue
        return
    one.run()
