"""Clients of a Spark Connect server that are processes of their own, and what a test sees of the server."""

import time
from pathlib import Path

import psutil
from deltalake import DeltaTable

from ackline.ledger.offsets import TopicPartition
from ackline.local.spark_server import SparkServer, running
from ackline.spark.master import ConnectServer, connect_server
from tests.spark.lab import Lab, run_script

RUNS_A_JOB = """
import sys
from pathlib import Path
from types import SimpleNamespace
from ackline.ledger.offsets import TopicPartition
from ackline.pipeline.folder import make_handlers_importable
from ackline.spark.session import open_session
from ackline.steps.plan import plan
from tests.spark.lab import Lab
make_handlers_importable()
bootstrap, root, topic = sys.argv[1:]
lab = Lab(open_session(), SimpleNamespace(bootstrap=bootstrap), Path(root), Path("none"), None)
job = lab.ran("changing:handle", {TopicPartition(topic, 0): (0, 1)})
print("outcomes", [outcome for _, outcome, _ in lab.outcomes(job)])
"""
"""Its arguments are the broker, the folder of the tables and the topic."""


class Client:
    """A process of its own that runs one job over one record, with the handler in a folder. Each has the same code."""

    HANDLER = "import os\nfrom ackline import Skip\ndef handle(record):\n    raise Skip(str(os.getpid()))\n"

    def __init__(self, lab: Lab, server: SparkServer, folder: Path) -> None:
        (folder / "pipelines").mkdir(parents=True)
        (folder / "changing.py").write_text(self.HANDLER)
        self.environment = {"ACKLINE_SPARK_MASTER": server.url, "ACKLINE_PIPELINES": str(folder / "pipelines")}
        self.lab, self.folder, self.topic, self.runs = lab, folder, lab.put(b"a").topic, 0

    def worker(self) -> str:
        self.runs += 1
        root = self.folder / f"audit{self.runs}"
        done = run_script(RUNS_A_JOB, self.lab.broker.bootstrap, str(root), self.topic, **self.environment)
        assert "outcomes ['skipped']" in done.stdout, done.stderr
        [message] = DeltaTable(str(root / "outcomes")).to_pyarrow_table().column("error_message").to_pylist()
        return str(message)


def daemons(server: SparkServer) -> int:
    saved = running(server.directory)
    assert saved is not None
    children = psutil.Process(saved.pid).children()
    return sum(child.status() != psutil.STATUS_ZOMBIE and "pyspark.daemon" in child.cmdline() for child in children)


def server_of(address: str) -> ConnectServer:
    found = connect_server(address)
    assert found is not None
    return found


def calls_of(lab: Lab, tp: TopicPartition) -> int:
    return sum(lab.calls(tp.topic).values())


def ended_calls(lab: Lab, tp: TopicPartition) -> int:
    """How many calls there were when they ended. Spark waits two seconds before it kills a worker."""
    ended = -1
    while ended != (now := calls_of(lab, tp)):
        ended = now
        time.sleep(1.5)
    return ended
