"""Secured connections, each through both Kafka clients in a whole run: passwords, certificates and tokens."""

import json
import re
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError

from ackline.errors import AcklineError, TransientError
from ackline.kafka.cluster import Cluster
from ackline.kafka.config import client_config, java_properties
from tests.e2e.commands import watched_arguments
from tests.e2e.lab import Spark
from tests.e2e.login_lab import LoginLab
from tests.support.certificates import PASSWORD, Authority, Issued
from tests.support.secured import USER, SecuredBroker
from tests.support.token_endpoint import CLIENT_SECRET

pytestmark = pytest.mark.real


def by_files(issued: Issued, folder: Path) -> dict[str, object]:
    certificate, key = issued.write(folder, "client")
    return {"ssl.certificate.location": str(certificate), "ssl.key.location": str(key)}


def logins(broker: SecuredBroker, folder: Path) -> Mapping[str, dict[str, object]]:
    """Returns each way to log in that works."""
    client = broker.authority.issue(USER)
    store = {"ssl.keystore.location": str(client.write_store(folder / "c.p12")), "ssl.keystore.password": PASSWORD}
    return {
        "PLAIN": broker.by_password("PLAIN"),
        "SCRAM": broker.by_password("SCRAM-SHA-512"),
        "OAUTHBEARER": broker.by_token(),
        "PEM files": broker.by_certificate(by_files(client, folder)),
        "PEM texts": broker.by_certificate({"ssl.certificate.pem": client.pem, "ssl.key.pem": client.key}),
        "PKCS#12": broker.by_certificate(store),
    }


@pytest.mark.parametrize(
    "way",
    [
        "OAUTHBEARER",
        *(pytest.param(way, marks=pytest.mark.deep) for way in ("SCRAM", "PEM files", "PKCS#12")),
        *(pytest.param(way, marks=pytest.mark.release) for way in ("PLAIN", "PEM texts")),
    ],
)
def test_a_run_with_retries_and_dead_letters_needs_the_least_rights_alone(
    way: str, secured: SecuredBroker, spark: Spark, tmp_path: Path
) -> None:
    lane = LoginLab(secured, tmp_path, spark, logins(secured, tmp_path)[way])
    assert lane.denied_in_runs_with_the_least_rights() == []


@pytest.mark.deep
def test_i13_neither_the_client_secret_nor_a_token_is_shown_by_a_whole_run(
    secured: SecuredBroker, spark: Spark, tmp_path: Path
) -> None:
    lane = LoginLab(secured, tmp_path, spark, secured.by_token())
    secured.grant(lane.rights())
    denied = len(secured.denials)
    lane.produce({"n": 0}, {"fail": 1})
    events = tmp_path / "events"
    events.mkdir()
    log = {"enabled": "true", "compress": "false", "dir": events.as_uri()}
    settings = " ".join(f"--conf spark.eventLog.{name}={value}" for name, value in log.items())
    with watched_arguments() as arguments:
        done = lane.ackline_process("run", lane.name, env={
            "AIRFLOW_CONN_KAFKA_DEFAULT": json.dumps({"conn_type": "kafka", "extra": lane.login}),
            "PYSPARK_SUBMIT_ARGS": f"{settings} pyspark-shell",
        })  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert secured.denials[denied:] == []
    stored = [path.read_bytes().decode(errors="replace") for path in Path(lane.audit).rglob("*") if path.is_file()]
    logs = [path.read_text() for path in events.rglob("*") if path.is_file()]
    assert any("SparkListenerJobEnd" in text for text in logs)
    # A token is signed, and what is signed is the same in each: its third part alone is a secret.
    secrets = [CLIENT_SECRET, *(token.rpartition(".")[2] for token in secured.endpoint.given)]
    assert len(secrets) > 2
    for texts in ([done.stdout, done.stderr], list(arguments.values()), stored, logs):
        assert any(texts)
        assert not [text[:200] for text in texts if any(secret in text for secret in secrets)]


def test_a_token_that_expires_in_a_turn_is_renewed_by_both_clients(
    secured: SecuredBroker, spark: Spark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker ends each connection whose token has expired. The turn takes several lives of a token, in which
    Spark's client and the reader of retries fetch all the time."""
    monkeypatch.setattr(secured.endpoint, "life", 4)
    lane = LoginLab(secured, tmp_path, spark, {**secured.by_token(), "fetch.message.max.bytes": 1024})
    secured.grant(lane.rights())
    lane.produce(*({"sleep": 0.3, "text": "x" * 600} for _ in range(40)))
    begun = time.monotonic()
    lane.run()
    assert time.monotonic() - begun > 3 * secured.endpoint.life
    assert (lane.committed(), set(lane.outcomes())) == (40, {"acked"})


def test_spark_without_a_token_fails_for_now_and_names_the_login(
    secured: SecuredBroker, spark: Spark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lane = LoginLab(secured, tmp_path, spark, secured.by_token())
    secured.grant(lane.rights())
    lane.produce({"n": 0})
    lane.plan()
    with monkeypatch.context() as patch:
        patch.setattr(secured.endpoint, "refuses", "Java")
        with pytest.raises(TransientError, match=r"Kafka client of Spark could not log in \(.*LoginException"):
            lane.replay()
    lane.run()
    assert lane.committed() == 1


def refused(broker: SecuredBroker, folder: Path) -> Mapping[str, tuple[dict[str, object], str]]:
    """Returns connections that can't work, each with its error."""
    own, expired = broker.authority.issue(USER), broker.authority.issue(USER, valid=timedelta(hours=-1))
    of_another = Authority("another").issue(USER)
    (folder / "another").mkdir()
    foreign = by_files(of_another, folder / "another")
    own_files = by_files(own, folder)
    token, endpoint = broker.by_token(), broker.endpoint.url.partition("/realms")[0]
    does_not_hold = r"the certificate of the broker 127\.0\.0\.1:\d+ does not hold: "
    no_token = rf"no login, because the token endpoint {endpoint} gave no token: "
    return {
        "a broker's certificate that has expired": (
            broker.by_password("PLAIN", "EXPIRED"),
            f"{does_not_hold}certificate has expired .*the broker needs a new certificate",
        ),
        "a broker's certificate of another name": (
            broker.by_password("PLAIN", "MISNAMED"),
            f"{does_not_hold}IP address mismatch.*connect by a name that the certificate has",
        ),
        "another authority": (
            {**broker.by_password("PLAIN"), "ssl.ca.location": foreign["ssl.certificate.location"]},
            f"{does_not_hold}unable to get local issuer certificate.*name the authority .*`ssl.ca.location`",
        ),
        "no client certificate": (
            broker.by_certificate({}),
            "demands a client certificate, and the connection has none .*set `ssl.certificate.location`",
        ),
        "a client certificate that has expired": (
            broker.by_certificate({"ssl.certificate.pem": expired.pem, "ssl.key.pem": expired.key}),
            r"refuses the client certificate, which has expired on 20\d\d-.* put a new one into",
        ),
        "a client certificate of another authority": (
            broker.by_certificate(foreign),
            "refuses the client certificate .* signed by an authority that the broker trusts",
        ),
        "a key of another certificate": (
            broker.by_certificate({**own_files, "ssl.key.location": foreign["ssl.key.location"]}),
            "ssl.key.location failed.*key values mismatch",
        ),
        "a wrong client secret": (
            broker.by_token(client_secret="canary-of-a-secret"),
            f"{no_token}.*invalid_client.*check `sasl.oauthbearer.client.id`, `.client.secret`",
        ),
        "a token endpoint that is away": (
            broker.by_token(token_endpoint_url="https://127.0.0.1:1/realms/tests/token"),
            "the token endpoint https://127.0.0.1:1 gave no token: Failed to connect.*the endpoint is up",
        ),
        "another authority of the token endpoint": (
            {**token, "https.ca.location": foreign["ssl.certificate.location"]},
            f"{no_token}SSL.*name the authority of the endpoint's certificate in `https.ca.location`",
        ),
        "a wrong password": (
            {**broker.by_password("SCRAM-SHA-512"), "sasl.password": "canary-of-a-secret"},
            "Authentication failed.*check security.protocol, the login",
        ),
    }


def test_each_connection_that_fails_names_its_reason_and_what_to_do(secured: SecuredBroker, tmp_path: Path) -> None:
    cases = refused(secured, tmp_path)

    def error_of(connection: dict[str, object]) -> str:
        with pytest.raises(AcklineError) as raised, Cluster(client_config(connection), "read_committed") as cluster:
            cluster.reachable()
        return str(raised.value)

    with ThreadPoolExecutor(len(cases)) as pool:
        errors = dict(zip(cases, pool.map(error_of, (connection for connection, _ in cases.values())), strict=True))
    wrong = {name: errors[name] for name, (_, wanted) in cases.items() if not re.search(wanted, errors[name])}
    assert wrong == {}
    assert [error for error in errors.values() if "broker is up" in error or "canary" in error] == []


@pytest.mark.deep
@pytest.mark.parametrize("listener", ["EXPIRED", "MISNAMED", "TLS"])
def test_spark_s_client_checks_the_broker_s_certificate_too(
    listener: str, secured: SecuredBroker, spark: Spark
) -> None:
    java = java_properties(client_config(secured.by_password("PLAIN", listener)))
    jvm = spark().sparkContext._jvm
    assert jvm is not None
    properties = jvm.java.util.Properties()
    for name, value in {**java, "default.api.timeout.ms": "10000", "request.timeout.ms": "5000"}.items():
        properties.put(name, value)
    admin = jvm.org.apache.kafka.clients.admin.AdminClient.create(properties)
    try:
        if listener == "TLS":
            assert admin.describeCluster().clusterId().get()
        else:
            with pytest.raises(Py4JJavaError, match="SslAuthenticationException"):
                admin.describeCluster().clusterId().get()
    finally:
        admin.close()


@pytest.mark.deep
def test_a_certificate_that_was_rotated_is_used_by_the_next_turn_in_both_clients(
    secured: SecuredBroker, spark: Spark, tmp_path: Path
) -> None:
    files = by_files(secured.authority.issue(USER), tmp_path)
    lane = LoginLab(secured, tmp_path, spark, secured.by_certificate(files))
    secured.grant(lane.rights())
    lane.produce({"n": 0})
    lane.run()
    by_files(secured.authority.issue(USER, valid=timedelta(hours=-1)), tmp_path)
    lane.produce({"n": 1})
    with pytest.raises(AcklineError, match="which has expired on"):
        lane.run()
    # Another user, and the rights of the first one have ended: neither client has kept the old certificate.
    by_files(secured.authority.issue("successor"), tmp_path)
    secured.grant(lane.rights(), "successor")
    lane.run()
    assert lane.committed() == 2
