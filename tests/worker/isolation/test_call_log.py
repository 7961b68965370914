"""The log of handler calls, by which a task finds the record that has killed the handler's process."""

from dataclasses import replace

import pytest

from ackline.handler import Tier
from ackline.worker.isolation.serving import CallLog
from tests.pipeline.test_streams import RECORD


def test_no_death_leaves_a_record_logged_as_given_while_no_call_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a record would pass for acked though its handler was never called (I2). A process may die at each write of
    the log; here it does while it reads the clock, where other threads may run."""
    log, states = CallLog.create(), []

    def clock() -> int:
        states.append((log.state().given, log.state().began_at))
        return 7

    monkeypatch.setattr("ackline.worker.isolation.serving.time.monotonic_ns", clock)
    log.begin_batch(2)
    called = log.wrap(lambda _: states.append((log.state().given, log.state().began_at)), Tier.RECORD)
    called(replace(RECORD, offset=100))
    called(replace(RECORD, offset=101))
    assert states == [(0, 0), (1, 7), (1, 7), (2, 7)]
    log.begin_batch(2)
    log.begin_call(0)
    log.begin_call(1)
    assert states[4:] == [(0, 0), (1, 7)]
    assert log.given().tolist() == [0, 1]
    log.close()
