"""Certificates that a connection names by path travel with a job as text."""

from pathlib import Path

import pytest

from ackline.errors import ConfigError
from ackline.kafka.config import inlined_certificates, java_properties

BROKER = {"bootstrap.servers": "127.0.0.1:9092", "security.protocol": "sasl_ssl"}
PEM = "-----BEGIN CERTIFICATE-----\nQUJD\n-----END CERTIFICATE-----\n"
KEY = "-----BEGIN PRIVATE KEY-----\nQUJD\n-----END PRIVATE KEY-----\n"


def named(tmp_path: Path) -> dict[str, str]:
    files = {"ssl.ca": PEM, "ssl.certificate": PEM, "ssl.key": KEY}
    for prefix, text in files.items():
        (tmp_path / prefix).write_text(text)
    return BROKER | {f"{prefix}.location": str(tmp_path / prefix) for prefix in files}


def test_files_are_replaced_by_their_text(tmp_path: Path) -> None:
    inlined = inlined_certificates(named(tmp_path))
    assert inlined == BROKER | {"ssl.ca.pem": PEM, "ssl.certificate.pem": PEM, "ssl.key.pem": KEY}


def test_java_s_client_gets_the_same_certificates_from_the_text(tmp_path: Path) -> None:
    config = {**named(tmp_path), "security.protocol": "ssl"}
    assert java_properties(inlined_certificates(config)) == java_properties(config)


def test_what_librdkafka_takes_as_a_file_or_finds_itself_stays(tmp_path: Path) -> None:
    config = BROKER | {"ssl.ca.location": "probe", "ssl.keystore.location": "/etc/client.p12"}
    assert inlined_certificates(config) == config


def test_a_file_that_can_not_be_read_is_named() -> None:
    with pytest.raises(ConfigError, match=r"`ssl\.ca\.location` \(/no/such/file\) can't be read"):
        inlined_certificates(BROKER | {"ssl.ca.location": "/no/such/file"})


def test_without_tls_no_file_is_opened() -> None:
    config = {"bootstrap.servers": "127.0.0.1:9092", "ssl.ca.location": "/no/such/file"}
    assert inlined_certificates(config) == config
