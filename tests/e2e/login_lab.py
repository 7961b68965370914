"""A lab whose pipeline logs in to the secured broker as a user with few rights. The test itself may do everything."""

import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from ackline.lane.adapters import open_adapters
from ackline.lane.lease import WhenHeld
from ackline.lane.rights import Right, needed_rights
from ackline.ledger.turns import LIVE
from tests.e2e.lab import Lab, Row, Spark
from tests.support.secured import SecuredBroker


class LoginLab(Lab):
    """The lab. Each run takes the connection from `login` anew."""

    def __init__(
        self, broker: SecuredBroker, folder: Path, spark: Spark, login: Mapping[str, object], **settings: Any
    ) -> None:
        self.login = dict(login)
        given = {"kafka": {"connection": "kafka_default"}, "retry": {**_AT_ONCE, "max_retries": 1}, **settings}
        super().__init__(broker, folder, spark, **given)

    def adapters(self, run_id: str | None = None, lane: str = LIVE) -> Any:
        self.judged = False
        return open_adapters(
            self.pipeline, dict(self.login), run_id=run_id or uuid.uuid4().hex, actor="test", now=self.now,
            audit=self.audit, lane=lane, when_held=WhenHeld.TAKE_OVER,
        )  # fmt: skip

    def rights(self) -> list[Right]:
        """Returns the least rights of a run."""
        with self.adapters() as adapters:
            return needed_rights(adapters, self.topics)

    def denied_in_runs_with_the_least_rights(self) -> list[str]:
        """Settles records that are acked, retried and dead-lettered, and returns the requests that were denied."""
        assert isinstance(self.broker, SecuredBroker)
        self.broker.grant(self.rights())
        before = len(self.broker.denials)
        self.produce({"n": 0}, {"fail": 1}, {"fail": -1}, {"n": 3})
        self.run()
        self.run()
        assert self.committed() == 4
        assert [row for row in self.rows() if row.outcome == "dead"] == [Row(2, 0, "dead")]
        return self.broker.denials[before:]


_AT_ONCE = {"initial_delay": "0s", "period": "0s"}


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    with SecuredBroker(tmp_path_factory.mktemp("secured")) as broker:
        yield broker
