"""A broker with an authorizer: the least rights are enough for a run, and each missing one is named before a plan."""

import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ackline.errors import MissingRights
from ackline.lane.adapters import open_adapters
from ackline.lane.lease import WhenHeld
from ackline.lane.rights import Right, missing_rights, needed_rights
from ackline.ledger.turns import LIVE
from tests.e2e.lab import Lab, Row, Spark
from tests.support.secured import USER, SecuredBroker

pytestmark = pytest.mark.real


class LoginLab(Lab):
    """A lab whose pipeline logs in as a user with few rights. The test itself may do everything."""

    def adapters(self, run_id: str | None = None, lane: str = LIVE) -> Any:
        self.judged = False
        assert isinstance(self.broker, SecuredBroker)
        return open_adapters(
            self.pipeline, dict(self.broker.login), run_id=run_id or uuid.uuid4().hex, actor="test", now=self.now,
            audit=self.audit, lane=lane, when_held=WhenHeld.TAKE_OVER,
        )  # fmt: skip

    def rights(self) -> list[Right]:
        with self.adapters() as adapters:
            return needed_rights(adapters, self.topics)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    with SecuredBroker(tmp_path_factory.mktemp("secured")) as broker:
        yield broker


@pytest.fixture
def lane(secured: SecuredBroker, spark: Spark, tmp_path: Path) -> LoginLab:
    return LoginLab(
        secured, tmp_path, spark, kafka={"connection": "kafka_default"},
        retry={"initial_delay": "0s", "period": "0s", "max_retries": 1},
    )  # fmt: skip


def test_the_least_rights_are_enough_for_retries_dead_letters_and_the_commit(
    lane: LoginLab, secured: SecuredBroker
) -> None:
    secured.grant(lane.rights())
    denied = len(secured.denials)
    lane.produce({"n": 0}, {"fail": 1}, {"fail": -1}, {"n": 3})
    lane.run()
    lane.run()
    assert lane.committed() == 4
    assert [row for row in lane.rows() if row.outcome == "dead"] == [Row(2, 0, "dead")]
    # Kafka's client asks for the coordinator of each reader's group, though it neither joins nor commits.
    of_readers = re.compile("DESCRIBE .* Group:LITERAL:ackline-[a-z]+ for request = FindCoordinator")
    assert [line for line in secured.denials[denied:] if not of_readers.search(line)] == []
    with lane.adapters() as adapters:
        assert missing_rights(adapters) == []


@pytest.mark.parametrize("number", [0, 1, 2], ids=["topic", "dead-letter topic", "group"])
def test_each_missing_right_is_named_before_anything_is_planned(
    number: int, lane: LoginLab, secured: SecuredBroker
) -> None:
    rights = lane.rights()
    missing = rights.pop(number)
    secured.grant(rights)
    lane.produce({"n": 0})
    with pytest.raises(MissingRights) as caught:
        lane.run()
    assert f"the login {USER} lacks at " in str(caught.value)
    assert f": {missing}. Nothing was planned. Grant each" in str(caught.value)
    assert (lane.table("plans"), lane.calls()) == ([], [])
    secured.grant([*rights, missing])
    lane.run()
    assert lane.committed() == 1
