"""The settings of the schema registry, from the pipeline file and the extra of the Kafka connection."""

import pytest

from ackline.errors import ConfigError
from ackline.kafka.registry import registry_config, without_registry_settings

CONNECTION = {
    "bootstrap.servers": "127.0.0.1:9092", "schema.registry.url": "https://me:hunter%402@registry:8081/path",
    "schema.registry.basic.auth.credentials.source": "USER_INFO", "schema.registry.timeout": "2.5",
    "schema.registry.max.retries": "1", "schema.registry.ssl.ca.location": None,
}  # fmt: skip


def test_i13_the_login_leaves_the_address_and_each_setting_has_its_type() -> None:
    assert dict(registry_config(None, CONNECTION)) == {
        "url": "https://registry:8081/path",
        "basic.auth.user.info": "me:hunter@2",
        "timeout": 2.5,
        "max.retries": 1,
    }


def test_the_address_of_the_file_is_used_with_the_login_of_the_connection() -> None:
    connection = {"schema.registry.url": "http://y", "schema.registry.basic.auth.user.info": "me:2"}
    assert dict(registry_config("http://x", connection)) == {"url": "http://x", "basic.auth.user.info": "me:2"}


def test_kafkas_clients_get_no_setting_of_the_registry() -> None:
    assert without_registry_settings(CONNECTION) == {"bootstrap.servers": "127.0.0.1:9092"}


@pytest.mark.parametrize(
    ("url", "connection", "reason"),
    [
        (None, {"bootstrap.servers": "x"}, r"no `schema\.registry\.url`"),
        ("http://x", {"schema.registry.max.retries": "many"}, r"`schema\.registry\.max\.retries` is not a number"),
        ("http://x", {"schema.registry.timeout": [1]}, r"`schema\.registry\.timeout` is a list"),
    ],
)
def test_a_missing_address_or_an_invalid_setting_is_refused_by_name(
    url: str | None, connection: dict[str, object], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        registry_config(url, connection)
