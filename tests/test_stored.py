"""Stored JSON: what other versions have written is read, and every other text is damaged, of whatever kind it is."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from ackline.airflow.driver import Secrets
from ackline.backfill.run import find_backfill
from ackline.errors import FatalError
from ackline.forms.arguments import BackfillArguments
from ackline.ledger.commit_rule import CommitMetadata
from ackline.ledger.turns import AckPosition, AnswerReport
from ackline.local.airflow_servers import SavedAirflow
from ackline.local.connection import SavedBroker
from ackline.spark.master import SavedServer
from ackline.stored import DamagedError
from ackline.tables.lease import Lease, StoppedRun
from ackline.tables.store import LedgerStore
from tests.tables.lane_rows import settlement

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
VALUES = [
    Lease("turn 1", "run", "host", "machine", "1:2", NOON, "holder", 3),
    StoppedRun(NOON, "run", "GroupMoved", "another client moved it", "ackline skip", True, (0, 7, 8)),
    CommitMetadata("ledger", "orders", 0, 7, "1a2b3c4d"),
    AckPosition("acks", "id", {0: 7}, {0: 2}),
    AnswerReport(AckPosition("acks", "id", {0: 5, 11: 0}), {"acked": 2}, ("lost",)),
    BackfillArguments(("orders:0:1-2",), of="backfill-a", since="2h ago"),
    Secrets({"bootstrap.servers": "b:1"}, {"key": "k"}, {"parent": "t"}, "sc://host"),
    SavedBroker(1, 2, 3, 4),
    SavedServer(1, 2, 3, "token"),
    SavedAirflow(1, 2, "p", "v", "j", "a", "f", [(3, 4)]),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_text_of_this_or_a_later_version_is_read_and_each_other_text_is_damaged(value: Any) -> None:
    text, decode = value.encode(), type(value).decode
    stored = json.loads(text)
    assert decode(text) == decode(json.dumps({**stored, "of a later version": [1]})) == value
    others = [text.replace("12:00:00Z", "12:00:00")] if "12:00:00Z" in text else []
    others += ["", "[]", "5", "null", "\x00", '{"a":' * 50_000, text[:-1], f"[{text}]", b"\xff"]
    for other in [*others, *(json.dumps({**stored, name: [{"": 5}]}) for name in stored)]:
        with pytest.raises(DamagedError, match="is stored there"):
            decode(other)


def test_a_field_that_an_earlier_version_did_not_store_has_its_default(tmp_path: Path) -> None:
    assert AckPosition.decode('{"topic": "acks", "topic_id": "id"}') == AckPosition("acks", "id")
    with pytest.raises(DamagedError, match="missing required field `topic_id`"):
        AckPosition.decode('{"topic": "acks"}')
    file = tmp_path / "saved.json"
    assert SavedBroker.read(file) is None
    file.write_text('{"port": 1}')
    assert SavedBroker.read(file) is None


def test_a_backfill_whose_arguments_are_damaged_does_not_go_on(tmp_path: Path) -> None:
    store = LedgerStore(str(tmp_path), "orders", "live")
    store.store_settlement(replace(settlement(0), arguments='{"ranges": "orders"}'))
    with pytest.raises(FatalError, match=r"the table settlements .* can't be used: no BackfillArguments is stored"):
        find_backfill(store)
