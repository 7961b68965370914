"""A broker with an authorizer: the least rights are enough for a run, and each missing one is named before a plan."""

import json
from pathlib import Path

import pytest

from ackline.errors import MissingRights
from ackline.lane.rights import Right, missing_rights
from ackline.ledger.commit_rule import Committed
from ackline.ledger.offsets import TopicPartition
from tests.e2e.lab import Spark
from tests.e2e.login_lab import LoginLab
from tests.support.secured import USER, SecuredBroker

pytestmark = pytest.mark.real


@pytest.fixture
def lane(secured: SecuredBroker, in_process: Spark, tmp_path: Path) -> LoginLab:
    return LoginLab(secured, tmp_path, in_process, secured.login)


def test_the_least_rights_are_enough_for_retries_dead_letters_and_the_commit(
    lane: LoginLab, secured: SecuredBroker
) -> None:
    assert lane.denied_in_runs_with_the_least_rights() == []
    with lane.adapters() as adapters:
        assert missing_rights(adapters, lane.topics) == []


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


@pytest.mark.parametrize(
    "command",
    [["doctor"], ["plan"], *(["backfill", "--all", "--id", "b", mode] for mode in ("--dry-run", "--yes"))],
    ids=" ".join,
)
def test_each_command_fails_without_the_right_to_the_dead_letter_topic(
    command: list[str], lane: LoginLab, secured: SecuredBroker
) -> None:
    secured.grant([right for right in lane.rights() if right.operation != "WRITE"])
    lane.produce({"n": 0})
    name, *options = command
    connection = {"AIRFLOW_CONN_KAFKA_DEFAULT": json.dumps({"conn_type": "kafka", "extra": lane.login})}
    done = lane.ackline(name, lane.name, *options, env=connection)
    assert done.returncode == 1
    assert f"lacks at {lane.login['bootstrap.servers']}: Write on topic {lane.dead_letter_topic}. " in " ".join(
        (done.stdout + done.stderr).split()
    )
    assert "has begun" not in done.stderr
    assert lane.calls() == []


def test_a_commit_that_the_group_s_rights_deny_names_the_group(lane: LoginLab, secured: SecuredBroker) -> None:
    rights = [right for right in lane.rights() if right.kind != "group"]
    secured.grant([*rights, Right("DESCRIBE", "group", lane.pipeline.kafka.group_id)])
    lane.produce({"n": 0})
    with lane.adapters() as adapters, pytest.raises(MissingRights, match=r"lacks Read on group .*: grant it"):
        adapters.group.commit({TopicPartition(lane.topic, 0): Committed(0, "")})


def test_a_right_to_the_dead_letter_topic_that_is_lost_in_a_turn_is_an_error(
    lane: LoginLab, secured: SecuredBroker
) -> None:
    lane.configure(retry={"max_retries": 0})
    rights = lane.rights()
    secured.grant(rights)
    lane.produce({"fail": -1})
    lane.plan()
    lane.replay()
    secured.grant([right for right in rights if right.operation != "WRITE"])
    with pytest.raises(MissingRights) as caught:
        lane.settle()
    assert f"the login {USER} lacks at " in str(caught.value)
    assert f"Write on topic {lane.dead_letter_topic}. " in str(caught.value)
    assert "idempotence" not in str(caught.value)
    secured.grant(rights)
    lane.settle()
    assert (lane.committed(), lane.outcomes()) == (1, {"failed": 1, "dead": 1})
