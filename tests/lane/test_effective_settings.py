"""The settings in force: all of them, and no secret among them."""

from ackline.lane.settings import effective_settings
from tests.support.memory_lane import MemoryLane


def test_settings_in_force_are_all_of_them_on_one_line_and_properties_by_name_only() -> None:
    lane = MemoryLane(
        topics=("orders", "payments"),
        streams=[{"name": "paid", "topics": ["orders"], "handler": "a:b"}],
        kafka={"properties": {"sasl.password": "canary", "client.id": "abc"}},
    )
    adapters = lane.adapters(kafka={"bootstrap.servers": "memory", "sasl.password": "canary", "ssl.key.pem": "canary"})
    line = effective_settings(adapters)
    assert "\n" not in line
    assert "canary" not in line
    settings = line.split(" ")
    for setting in (
        "guarantee=at_least_once", "record_outcomes=true", "kafka.topics=[orders,payments]", "retry.period=60s",
        "kafka.properties=[client.id,sasl.password]", "kafka.bootstrap_servers=memory",
        "kafka.connection.properties=bootstrap.servers,sasl.password,ssl.key.pem", "streams.0.name=paid",
    ):  # fmt: skip
        assert setting in settings, line
