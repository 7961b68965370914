"""The ready-made operator actions of the page."""

import json
import shlex

from ackline.offsets import TopicPartition
from ackline.turns import LIVE
from ackline.ui.acts import ActMaker
from ackline.ui.addresses import Addresses

TP = TopicPartition("orders", 3)
ADDRESSES = Addresses("/base/ackline/", "/base")


def test_an_act_links_to_its_dag_only_where_airflow_has_it() -> None:
    with_backfill = ActMaker("orders", LIVE, {"replay__orders", "backfill__orders"}, ADDRESSES)
    retry, skip, backfill = with_backfill.of_record(TP, 1041, pending=True)
    assert backfill.dag_url == "/base/dags/backfill__orders"
    assert (retry.dag_url, skip.dag_url) == (None, None)
    assert json.loads(backfill.conf) == {"ranges": ["orders:3:1041-1042"]}


def test_the_command_of_an_act_is_safe_to_paste() -> None:
    hostile = "x'; rm -rf / #"
    [act] = ActMaker("orders", LIVE, (), ADDRESSES).of_failures("retry", hostile)
    assert shlex.split(act.command) == ["ackline", "retry", "orders", "--error-class", hostile]
    assert json.loads(act.conf)["error_class"] == hostile


def test_a_settled_record_is_handled_again_only_by_a_backfill() -> None:
    [act] = ActMaker("orders", LIVE, (), ADDRESSES).of_record(TP, 7, pending=False)
    assert shlex.split(act.command) == ["ackline", "backfill", "orders", "orders:3:7-8"]


def test_an_act_on_another_lane_names_it() -> None:
    retry, *_ = ActMaker("orders", "backfill-a", (), ADDRESSES).of_partition(TP, 5, 9)
    assert retry.command.endswith("--lane backfill-a")
