"""I13: no secret of the connection and no payload gets into Spark's settings, plans, event log or output."""

from pathlib import Path

from ackline.local.broker import Broker
from ackline.pipeline.properties import key_hash
from tests.conftest import MakeTopic
from tests.kafka.kafka_log import put
from tests.spark.lab import run_script

SECRET = "canary-of-the-connection"
PAYLOAD = "canary-of-the-payload"

SCRIPT = """
import sys
from pathlib import Path
from types import SimpleNamespace
from ackline.errors import AcklineError
from ackline.ledger.offsets import TopicPartition
from ackline.spark import job as replay_job
from ackline.spark.session import open_session
from ackline.ledger.answers import TokenSigner
from tests.spark.lab import Lab

bootstrap, topic, root, secret = sys.argv[1:]
lab = Lab(open_session(), SimpleNamespace(bootstrap=bootstrap), Path(root), Path("none"), None)
tp = TopicPartition(topic, 0)
original = replay_job.manifests_of

def explained(*arguments):
    manifests = original(*arguments)
    manifests.explain(extended=True)
    return manifests

replay_job.manifests_of = explained
for handler in ("by_word", "column_words", "column_raises"):
    tokens = TokenSigner(secret.encode(), "ledger", lab.job(handler).target.turn, {tp: "id"})
    # Every property of the connection goes where a password would go. A broker without a login accepts this one.
    job = lab.job(handler, {tp: (0, 2)}, {tp: {2: 2}}, kafka={"client.id": secret},
                  store_options={"aws_secret_access_key": secret}, key_hash_secret=secret.encode(),
                  tokens=tokens if handler == "by_word" else None)
    try:
        lab.run(job)
        print(lab.rows(job))
    except AcklineError as error:
        print("refused:", type(error).__name__, error)
print(lab.spark.sparkContext.getConf().getAll())
print(lab.spark.sparkContext._jvm.java.lang.System.getenv())
print(lab.spark.sparkContext.parallelize([0], 1).map(lambda _: f"worker: {dict(__import__('os').environ)}").collect())
lab.spark.stop()
"""


def test_neither_secret_nor_payload_shows_anywhere(broker: Broker, topic: MakeTopic, tmp_path: Path) -> None:
    """Searches for canaries in the event log, the plans, the settings, the output of the job, the table, and the
    environment of the JVM and of a worker."""
    name = topic()
    put(broker, name, [(PAYLOAD.encode(), b"ok"), (None, PAYLOAD.encode()), (PAYLOAD.encode(), b"fail")])
    events = tmp_path / "events"
    events.mkdir()
    log_events = {"enabled": "true", "compress": "false", "dir": events.as_uri()}
    settings = " ".join(f"--conf spark.eventLog.{key}={value}" for key, value in log_events.items())
    environment = {"ACKLINE_SPARK_MASTER": "local[2]", "PYSPARK_SUBMIT_ARGS": f"{settings} pyspark-shell",
                   "AIRFLOW_CONN_KAFKA_DEFAULT": SECRET, "AIRFLOW__CORE__FERNET_KEY": SECRET}  # fmt: skip
    table = tmp_path / "audit"
    done = run_script(SCRIPT, broker.bootstrap, name, str(table), SECRET, **environment)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "refused: FatalError" in done.stdout
    assert "'outcome': 'failed'" in done.stdout
    assert "worker: {" in done.stdout
    assert f"'key_hash64': {key_hash(SECRET.encode())(PAYLOAD.encode())}" in done.stdout
    logs = [path.read_bytes() for path in events.rglob("*") if path.is_file()]
    assert logs
    assert any(b"SparkListenerSQLExecutionStart" in log for log in logs)
    files = [path.read_bytes() for path in table.rglob("*") if path.is_file()]
    for canary in (SECRET, PAYLOAD):
        assert canary not in done.stdout
        assert canary not in done.stderr
        assert not any(canary.encode() in file for file in files)
    # Only a text that an expression itself raises, with raise_error, goes into Spark's event log.
    lines = [line for log in logs for line in log.splitlines() if b"USER_RAISED_EXCEPTION" not in line]
    assert not any(SECRET.encode() in log for log in logs)
    assert not any(PAYLOAD.encode() in line for line in lines)
