"""Client properties: what is refused, what is dropped, what Java's client is told, and what a log may show."""

import subprocess
import sys
from pathlib import Path

import pytest

from ackline.errors import ConfigError
from ackline.kafka.cluster import Cluster
from ackline.kafka.config import REQUIRED, client_config, java_properties, masked, scrubbed
from ackline.kafka.java import DROPPED
from ackline.properties import ignored, refused

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
    reasons = refused({name: "x", "fetch.min.bytes": 1})
    assert list(reasons) == [name]
    assert len(reasons[name]) > 20


def test_a_pipeline_file_may_set_how_to_connect_and_how_to_fetch() -> None:
    assert refused({
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


def test_the_second_name_that_kafkas_client_has_for_a_property_is_no_way_round() -> None:
    """It takes `topic.X` for X, and so would commit by itself."""
    hidden = {"topic.enable.auto.commit": True, "topic.auto.offset.reset": "earliest", "topic.acks": 1}
    assert list(refused({**hidden, "fetch.min.bytes": 1})) == list(hidden)
    assert client_config({**BROKER, **hidden}) == {**BROKER, **REQUIRED}
    assert list(ignored(hidden, "g", "read_committed")) == sorted(hidden)


def test_a_login_callback_of_the_connection_is_kept() -> None:
    assert client_config({**BROKER, "oauth_cb": print})["oauth_cb"] is print


def test_the_brokers_may_be_named_by_the_older_property() -> None:
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
    with pytest.raises(ConfigError, match=r"a login belongs into `sasl\.username`") as raised:
        client_config({name: address})
    assert "canary" not in str(raised.value)


def test_a_value_that_is_no_property_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"`client\.id` is a list") as raised:
        client_config({**BROKER, "client.id": ["x"]})
    assert raised.value.key == "client.id"


def test_a_value_that_kafkas_client_would_cut_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"`sasl\.username` has a NUL") as raised:
        client_config({**BROKER, "sasl.username": "me\0you"})
    assert raised.value.key == "sasl.username"
    assert "you" not in str(raised.value)


def test_plain_properties_become_javas() -> None:
    assert java_properties(client_config({
        **BROKER, "socket.timeout.ms": 5000, "fetch.wait.max.ms": 10, "fetch.message.max.bytes": 7,
        "connections.max.idle.ms": 0, "socket.receive.buffer.bytes": 0, "client.id": "me", "check.crcs": True,
        "session.timeout.ms": 6000, "queued.min.messages": 1, "log_level": 3,
    })) == {
        **BROKER, "security.protocol": "PLAINTEXT", "request.timeout.ms": "5000", "fetch.max.wait.ms": "10",
        "max.partition.fetch.bytes": "7", "connections.max.idle.ms": "-1", "receive.buffer.bytes": "-1",
        "client.id": "me", "check.crcs": "true",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("mechanism", "module"),
    [
        ("PLAIN", "org.apache.kafka.common.security.plain.PlainLoginModule"),
        ("scram-sha-256", "org.apache.kafka.common.security.scram.ScramLoginModule"),
        ("SCRAM-SHA-512", "org.apache.kafka.common.security.scram.ScramLoginModule"),
    ],
)
@pytest.mark.parametrize("name", ["sasl.mechanism", "sasl.mechanisms"])
def test_a_login_becomes_a_jaas_line(name: str, mechanism: str, module: str) -> None:
    login = {"security.protocol": "sasl_plaintext", name: mechanism, "sasl.username": "me", "sasl.password": "it"}
    assert java_properties({**BROKER, **login}) == {
        **BROKER,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism.upper(),
        "sasl.jaas.config": f'{module} required username="me" password="it";',
    }


def test_a_login_cannot_break_out_of_its_quotes() -> None:
    login = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": 'a" b=\\"c;'}
    jaas = java_properties({**BROKER, **login, "sasl.password": "x\ny\r\\"})["sasl.jaas.config"]
    assert jaas.endswith('required username="a\\" b=\\\\\\"c;" password="x\\ny\\r\\\\";')


@pytest.mark.parametrize(
    ("login", "named"),
    [
        ({"sasl.mechanism": "OAUTHBEARER"}, "sasl.mechanism"),
        ({"sasl.username": "me"}, "sasl.mechanism"),  # librdkafka's default is GSSAPI
        ({"sasl.mechanism": "PLAIN", "sasl.username": "me"}, "sasl.password"),
    ],
)
def test_a_login_that_java_is_not_told_is_refused_by_name(login: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError) as raised:
        java_properties({**BROKER, "security.protocol": "SASL_SSL", **login})
    assert raised.value.key == named
    assert f"`{named}`" in str(raised.value)


PEM = "-----BEGIN CERTIFICATE-----\nQUJD\n-----END CERTIFICATE-----\n"
KEY = "-----BEGIN PRIVATE KEY-----\nQUJD\n-----END PRIVATE KEY-----\n"


def test_certificates_become_pem_stores(tmp_path: Path) -> None:
    files = {name: tmp_path / name for name in ("ca", "certificate", "key")}
    for name, file in files.items():
        file.write_text(KEY if name == "key" else PEM)
    wanted = {
        **BROKER, "security.protocol": "SSL", "ssl.endpoint.identification.algorithm": "https",
        "ssl.truststore.type": "PEM", "ssl.truststore.certificates": PEM, "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": PEM, "ssl.keystore.key": KEY,
    }  # fmt: skip
    by_file = {f"ssl.{name}.location": str(file) for name, file in files.items()}
    by_text = {"ssl.ca.pem": PEM, "ssl.certificate.pem": PEM, "ssl.key.pem": KEY}
    for given in (by_file, by_text):
        assert java_properties({**BROKER, "security.protocol": "ssl", **given}) == wanted


def test_a_key_store_stays_one() -> None:
    java = java_properties({
        **BROKER, "security.protocol": "SSL", "ssl.keystore.location": "/k.p12", "ssl.keystore.password": "it",
        "ssl.endpoint.identification.algorithm": "none",
    })  # fmt: skip
    assert java["ssl.endpoint.identification.algorithm"] == ""
    assert java["ssl.keystore.type"] == "PKCS12"
    assert (java["ssl.keystore.location"], java["ssl.keystore.password"]) == ("/k.p12", "it")
    assert "ssl.truststore.type" not in java


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"ssl.ca.location": "/nowhere/ca.pem"}, "ssl.ca.location"),
        ({"enable.ssl.certificate.verification": False}, "enable.ssl.certificate.verification"),
        ({"ssl.endpoint.identification.algorithm": "ldap"}, "ssl.endpoint.identification.algorithm"),
        ({"ssl.certificate.pem": PEM}, "ssl.key.location"),
        ({"ssl.key.pem": KEY}, "ssl.certificate.location"),
        ({"ssl.certificate.pem": PEM, "ssl.key.pem": KEY.replace("PRIVATE", "RSA PRIVATE")}, "ssl.key.pem"),
        ({"ssl.certificate.pem": PEM, "ssl.key.pem": KEY.replace("PRIVATE", "ENCRYPTED PRIVATE")}, "ssl.key.pem"),
        ({"ssl.cipher.suites": "AES"}, "ssl.cipher.suites"),
        ({"no.such.property": 1}, "no.such.property"),
        ({"oauth_cb": print}, "oauth_cb"),
    ],
)
def test_what_java_cannot_be_told_is_refused_by_name(given: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError) as raised:
        java_properties({**BROKER, "security.protocol": "SSL", **given})
    assert raised.value.key == named
    assert f"`{named}`" in str(raised.value)


def test_what_is_dropped_for_java_is_neither_connection_nor_security() -> None:
    assert not [name for name in DROPPED if name.startswith(("sasl.", "ssl.", "security.", "bootstrap."))]


def test_a_log_shows_no_secret() -> None:
    login = {
        "sasl.username": "me", "sasl.password": "canary", "ssl.key.password": "canary", "ssl.key.pem": "canary",
        "sasl.jaas.config": "canary", "sasl.oauthbearer.client.secret": "canary", "some.token": "canary",
        "sasl.oauthbearer.config": "canary", "SSL.Keystore.Password": "canary", "oauth_cb": print,
        "sasl.oauthbearer.token.endpoint.url": "canary", "registry.url": "https://me:canary@host/x",
        "ssl.keystore.certificate.chain": "canary",
    }  # fmt: skip
    shown = scrubbed({**BROKER, **login})
    assert "canary" not in repr(shown)
    assert (shown["bootstrap.servers"], shown["sasl.username"]) == (BROKER["bootstrap.servers"], "me")
    assert shown["registry.url"] == "https://***@host/x"


def test_i13_what_kafkas_client_says_repeats_no_secret() -> None:
    """It quotes what it can't parse, from the middle on too, and addresses that it can't reach."""
    config = {
        **BROKER, "sasl.oauthbearer.config": "principal=me canary=x", "sasl.password": "pass word",
        "sasl.oauthbearer.token.endpoint.url": "https://host/canary", "ssl.key.location": "/keys/mine.pem",
        "sasl.oauthbearer.client.secret": "abc",
    }  # fmt: skip
    said = "beginning at: canary=x; token from https://host/canary; http://me:canary@proxy/; pass word; /keys/mine.pem"
    assert masked(said, config) == "beginning at: ***; token from ***; http://***@proxy/; ***; /keys/mine.pem"


def test_i13_a_client_that_is_refused_its_configuration_does_not_repeat_it() -> None:
    with pytest.raises(ConfigError) as raised, Cluster({**BROKER, "ssl.key.pem": 5, "secret.x": "canary"}, "x"):
        pass
    assert "canary" not in str(raised.value)


def test_checking_a_pipeline_file_loads_no_client() -> None:
    code = "import sys, ackline.kafka.config; sys.exit('confluent_kafka' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
