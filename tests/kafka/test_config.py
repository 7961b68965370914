"""Client properties: which a pipeline file may set, which a connection keeps, and what a message may show."""

import subprocess
import sys

import pytest

from ackline.errors import ConfigError
from ackline.kafka import clients
from ackline.kafka.config import REQUIRED, client_config, mask_secrets
from ackline.pipeline.properties import ignored_properties, refused_properties

BROKER = {"bootstrap.servers": "127.0.0.1:9092"}


@pytest.mark.parametrize(
    "name",
    [
        "group.id", "enable.auto.commit", "enable.auto.offset.store", "auto.offset.reset", "isolation.level",
        "plugin.library.paths", "interceptor.classes", "group.instance.id", "partition.assignment.strategy",
        "enable.partition.eof", "transactional.id", "key.deserializer", "value.deserializer", "key.serializer",
        "value.serializer", "debug", "error_cb", "acks", "linger.ms", "bootstrap.servers", "metadata.broker.list",
    ],
)  # fmt: skip
def test_a_pipeline_file_may_not_set_what_breaks_the_rules(name: str) -> None:
    reasons = refused_properties({name: "x", "fetch.min.bytes": 1})
    assert list(reasons) == [name]
    assert len(reasons[name]) > 20


def test_a_pipeline_file_may_set_how_to_connect_and_how_to_fetch() -> None:
    assert refused_properties({
        "security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": "u", "sasl.password": "p",
        "ssl.ca.location": "/ca.pem", "socket.timeout.ms": 1000, "fetch.max.bytes": 1, "client.id": "me",
    }) == {}  # fmt: skip


def test_a_shared_connection_is_used_without_what_breaks_the_rules() -> None:
    extra = {
        **BROKER, "group.id": "another", "auto.offset.reset": "latest", "enable.auto.commit": True, "debug": "all",
        "error_cb": print, "stats_cb": "mine.stats", "linger.ms": 5, "acks": 1, "sasl.username": "me",
        "socket.timeout.ms": 5000, "client.rack": None,
    }  # fmt: skip
    given = client_config(extra)
    assert given == {**BROKER, "sasl.username": "me", "socket.timeout.ms": 5000, **REQUIRED}
    assert given["enable.auto.commit"] is False
    assert given["auto.offset.reset"] == "error"


def test_the_second_name_of_a_property_is_ignored_and_refused_too() -> None:
    """Kafka's client takes `topic.enable.auto.commit` for `enable.auto.commit`, and would commit by itself."""
    hidden = {"topic.enable.auto.commit": True, "topic.auto.offset.reset": "earliest", "topic.acks": 1}
    assert list(refused_properties({**hidden, "fetch.min.bytes": 1})) == list(hidden)
    assert client_config({**BROKER, **hidden}) == {**BROKER, **REQUIRED}
    assert list(ignored_properties(hidden, "g", "read_committed")) == sorted(hidden)


def test_a_login_callback_of_the_connection_is_kept() -> None:
    assert client_config({**BROKER, "oauth_cb": print})["oauth_cb"] is print


def test_the_older_property_for_brokers_is_accepted() -> None:
    given = client_config({"metadata.broker.list": "a:1,b:2"})
    assert given["bootstrap.servers"] == "a:1,b:2"
    assert "metadata.broker.list" not in given


@pytest.mark.parametrize("extra", [{}, {"bootstrap.servers": " "}, {"bootstrap.servers": None}])
def test_a_connection_without_a_broker_is_refused_by_name(extra: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"bootstrap\.servers"):
        client_config(extra)


@pytest.mark.parametrize("address", ["PLAINTEXT://me:canary@a:1", "b:1,me:canary@a:1", "canary@a:1"])
@pytest.mark.parametrize("name", ["bootstrap.servers", "metadata.broker.list"])
def test_i13_a_broker_with_a_login_in_its_address_is_refused_and_not_repeated(name: str, address: str) -> None:
    with pytest.raises(ConfigError, match=r"put the login into `sasl\.username`") as raised:
        client_config({name: address})
    assert "canary" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [("client.id", ["x"], r"`client\.id` is a list"), ("sasl.username", "me\0you", r"`sasl\.username` has a NUL")],
)
def test_a_value_that_kafkas_client_can_not_use_is_refused_by_name(name: str, value: object, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as raised:
        client_config({**BROKER, name: value})
    assert raised.value.key == name
    assert "you" not in str(raised.value)


SECRETS = [
    "sasl.password", "ssl.key.password", "ssl.key.pem", "sasl.jaas.config", "sasl.oauthbearer.client.secret",
    "some.token", "sasl.oauthbearer.config", "SSL.Keystore.Password", "sasl.oauthbearer.token.endpoint.url",
    "ssl.keystore.certificate.chain",
]  # fmt: skip


def test_i13_a_message_of_kafkas_client_shows_no_secret() -> None:
    """The client quotes what it can't parse, also from the middle on, and addresses that it can't reach."""
    config = {
        **BROKER, **{name: f"canary-{n} word{n}" for n, name in enumerate(SECRETS)}, "sasl.username": "me",
        "sasl.oauthbearer.config": "principal=me canary=x", "sasl.oauthbearer.token.endpoint.url": "https://host/canary",
        "ssl.key.location": "/keys/mine.pem", "short.secret": "abc",
    }  # fmt: skip
    whole = " ".join(str(config[name]) for name in SECRETS)
    assert not {word for word in mask_secrets(whole, config).split() if word != "***"}
    text = "beginning at: canary=x; token from https://host/canary; http://me:canary@proxy/; word0; /keys/mine.pem; abc"
    assert mask_secrets(text, config) == (
        "beginning at: ***; token from ***; http://***@proxy/; ***; /keys/mine.pem; abc"
    )


def test_checking_a_pipeline_file_loads_no_client() -> None:
    code = "import sys, ackline.kafka.config; sys.exit('confluent_kafka' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_i13_a_refused_configuration_is_not_repeated() -> None:
    with pytest.raises(ConfigError, match="refuses its configuration") as raised:
        clients.admin({**BROKER, "ssl.key.pem": 5, "secret.x": "canary"})
    assert "canary" not in str(raised.value)
