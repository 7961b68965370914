"""Properties for Java's Kafka client: their counterparts, its login and its certificates. Those that a connection names
by path travel with a job as text."""

from pathlib import Path

import pytest

from ackline.errors import ConfigError
from ackline.kafka.config import DROPPED, client_config, inlined_certificates, java_properties

BROKER = {"bootstrap.servers": "127.0.0.1:9092"}
PEM = "-----BEGIN CERTIFICATE-----\nQUJD\n-----END CERTIFICATE-----\n"
KEY = "-----BEGIN PRIVATE KEY-----\nQUJD\n-----END PRIVATE KEY-----\n"


def test_plain_properties_get_their_names_in_java() -> None:
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


def test_a_key_store_is_passed_on() -> None:
    java = java_properties({
        **BROKER, "security.protocol": "SSL", "ssl.keystore.location": "/k.p12", "ssl.keystore.password": "it",
        "ssl.endpoint.identification.algorithm": "none",
    })  # fmt: skip
    assert java["ssl.endpoint.identification.algorithm"] == ""
    assert java["ssl.keystore.type"] == "PKCS12"
    assert (java["ssl.keystore.location"], java["ssl.keystore.password"]) == ("/k.p12", "it")
    assert "ssl.truststore.type" not in java


SASL = {"security.protocol": "SASL_SSL"}
TOKEN = {
    **SASL, "sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.method": "OIDC", "sasl.oauthbearer.client.id": "me",
    "sasl.oauthbearer.client.secret": 'it"s', "sasl.oauthbearer.token.endpoint.url": "https://login/token",
}  # fmt: skip


def test_client_credentials_become_a_login_by_tokens() -> None:
    more = {"scope": "replay read", "extensions": "logicalCluster=lkc-1, pool=p", "grant.type": "client_credentials"}
    java = java_properties({
        **BROKER, **TOKEN, **{f"sasl.oauthbearer.{name}": value for name, value in more.items()}, "https.ca.pem": PEM,
    })  # fmt: skip
    oauth = "org.apache.kafka.common.security.oauthbearer"
    assert java == {
        **BROKER, **SASL, "ssl.endpoint.identification.algorithm": "https", "sasl.mechanism": "OAUTHBEARER",
        "sasl.jaas.config": f'{oauth}.OAuthBearerLoginModule required clientId="me" clientSecret="it\\"s" '
        f'scope="replay read" extension_logicalCluster="lkc-1" extension_pool="p" ssl.truststore.type="PEM" '
        f'ssl.truststore.certificates={PEM!r};'.replace("'", '"'),
        "sasl.login.callback.handler.class": f"{oauth}.OAuthBearerLoginCallbackHandler",
        "sasl.oauthbearer.token.endpoint.url": "https://login/token",
        "sasl.login.connect.timeout.ms": "10000", "sasl.login.read.timeout.ms": "10000",
    }  # fmt: skip


def test_the_other_names_of_client_id_and_secret_are_taken() -> None:
    other = {name.replace("client.", "client.credentials.client."): value for name, value in TOKEN.items()}
    assert java_properties({**BROKER, **other}) == java_properties({**BROKER, **TOKEN})


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({**SASL, "sasl.mechanism": "OAUTHBEARER"}, "sasl.oauthbearer.method"),
        ({**TOKEN, "sasl.oauthbearer.method": "default"}, "sasl.oauthbearer.method"),
        ({**TOKEN, "sasl.oauthbearer.config": "principal=me"}, "sasl.oauthbearer.config"),
        ({**TOKEN, "enable.sasl.oauthbearer.unsecure.jwt": True}, "enable.sasl.oauthbearer.unsecure.jwt"),
        ({**TOKEN, "sasl.oauthbearer.assertion.file": "/jwt"}, "sasl.oauthbearer.assertion.file"),
        ({**TOKEN, "sasl.oauthbearer.grant.type": "jwt-bearer"}, "sasl.oauthbearer.grant.type"),
        (
            {**TOKEN, "sasl.oauthbearer.metadata.authentication.type": "azure_imds"},
            "sasl.oauthbearer.metadata.authentication.type",
        ),
        ({**TOKEN, "sasl.oauthbearer.client.id": None}, "sasl.oauthbearer.client.id"),
        ({**TOKEN, "sasl.oauthbearer.client.secret": ""}, "sasl.oauthbearer.client.secret"),
        ({**TOKEN, "sasl.oauthbearer.token.endpoint.url": None}, "sasl.oauthbearer.token.endpoint.url"),
        ({**TOKEN, "sasl.oauthbearer.token.endpoint.url": "file:///token"}, "sasl.oauthbearer.token.endpoint.url"),
        (
            {**TOKEN, "sasl.oauthbearer.token.endpoint.url": "https://me:it@host/"},
            "sasl.oauthbearer.token.endpoint.url",
        ),
        ({**TOKEN, "https.ca.location": "/nowhere/ca.pem"}, "https.ca.location"),
        ({**SASL, "sasl.username": "me"}, "sasl.mechanism"),  # librdkafka's default is GSSAPI
        ({**SASL, "sasl.mechanism": "PLAIN", "sasl.username": "me"}, "sasl.password"),
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
def test_a_property_without_a_counterpart_is_refused_by_name(given: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError) as raised:
        java_properties({**BROKER, "security.protocol": "SSL", **given})
    assert raised.value.key == named
    assert f"`{named}`" in str(raised.value)


def test_no_dropped_property_is_about_the_connection_or_security() -> None:
    assert not [name for name in DROPPED if name.startswith(("sasl.", "ssl.", "security.", "bootstrap."))]


# ---- certificates as text

SASL_BROKER = {**BROKER, "security.protocol": "sasl_ssl"}


def named(tmp_path: Path) -> dict[str, str]:
    files = {"ssl.ca": PEM, "ssl.certificate": PEM, "ssl.key": KEY}
    for prefix, text in files.items():
        (tmp_path / prefix).write_text(text)
    return SASL_BROKER | {f"{prefix}.location": str(tmp_path / prefix) for prefix in files}


def test_files_are_replaced_by_their_text(tmp_path: Path) -> None:
    inlined = inlined_certificates(named(tmp_path))
    assert inlined == SASL_BROKER | {"ssl.ca.pem": PEM, "ssl.certificate.pem": PEM, "ssl.key.pem": KEY}


def test_what_librdkafka_takes_as_a_file_or_finds_itself_stays(tmp_path: Path) -> None:
    config = SASL_BROKER | {"ssl.ca.location": "probe", "ssl.keystore.location": "/etc/client.p12"}
    assert inlined_certificates(config) == config


def test_a_file_that_can_not_be_read_is_named() -> None:
    with pytest.raises(ConfigError, match=r"`ssl\.ca\.location` \(/no/such/file\) can't be read"):
        inlined_certificates(SASL_BROKER | {"ssl.ca.location": "/no/such/file"})


def test_the_authority_of_a_token_endpoint_travels_too(tmp_path: Path) -> None:
    (tmp_path / "ca").write_text(PEM)
    config = {**BROKER, "security.protocol": "SASL_PLAINTEXT", "https.ca.location": str(tmp_path / "ca")}
    inlined = inlined_certificates(config)
    assert (inlined["https.ca.pem"], "https.ca.location" in inlined) == (PEM, False)


def test_without_tls_no_file_is_opened() -> None:
    config = {"bootstrap.servers": "127.0.0.1:9092", "ssl.ca.location": "/no/such/file"}
    assert inlined_certificates(config) == config
