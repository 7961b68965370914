"""The partitions that the block `kafka:` subscribes to."""

from ackline.pipeline.pipeline import load
from tests.support.pipeline_files import Write


def test_s33_explicit_partitions_are_the_only_ones(write_file: Write) -> None:
    kafka = load(write_file(("topics: [orders]", "partitions: {orders: [0, 2]}"))).kafka
    assert [kafka.subscribes_to("orders", partition) for partition in range(4)] == [True, False, True, False]
    assert not kafka.subscribes_to("payments", 0)
    assert kafka.named_topics == ("orders",)


def test_s32_a_pattern_matches_whole_names_only(write_file: Write) -> None:
    kafka = load(write_file(("topics: [orders]", 'pattern: "shop-.*"'))).kafka
    topics = ("shop-orders", "my-shop-orders", "shop-")
    assert [kafka.subscribes_to_topic(topic) for topic in topics] == [True, False, True]
    assert kafka.named_topics is None
