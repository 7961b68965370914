"""A broker with an authorizer: the least rights are enough for a run, and each missing one is named before a plan."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ackline.errors import MissingRights
from ackline.lane.rights import missing_rights
from tests.e2e.lab import Row, Spark
from tests.e2e.login_lab import LoginLab
from tests.support.secured import USER, SecuredBroker

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    with SecuredBroker(tmp_path_factory.mktemp("secured")) as broker:
        yield broker


@pytest.fixture
def lane(secured: SecuredBroker, spark: Spark, tmp_path: Path) -> LoginLab:
    return LoginLab(secured, tmp_path, spark, secured.login)


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
    assert secured.denials[denied:] == []
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
