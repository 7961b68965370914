"""What a cluster's list of topics leaves out."""

from types import SimpleNamespace

import pytest

from ackline.kafka.cluster import Cluster
from ackline.kafka.config import client_config


def test_the_internal_topics_of_kafka_match_no_pattern(monkeypatch: pytest.MonkeyPatch) -> None:
    topics = ["orders", "__consumer_offsets", "__transaction_state", "__share_group_state", "__orders"]
    listed = SimpleNamespace(topics=dict.fromkeys(topics))
    cluster = Cluster(client_config({"bootstrap.servers": "127.0.0.1:1"}), "read_committed")
    monkeypatch.setattr(cluster, "_admin", SimpleNamespace(list_topics=lambda timeout: listed))
    assert cluster.names() == ["__orders", "orders"]
