"""Starts the S3 server of the tests, and makes its environment first if it is not there yet."""

import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ackline.local.connection import listens
from ackline.local.processes import free_ports, wait_until
from tests.support.environments import made_environment

FOLDER = Path(__file__).parent
REQUIREMENTS = FOLDER / "requirements.txt"
KEY, SECRET = "the-access-key", "canary/of/the+secret-key"
REGION = "us-east-1"


@dataclass(frozen=True, slots=True)
class ObjectStore:
    """A server that is up, and how to reach it."""

    endpoint: str

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which its clients find it."""
        return {
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": REGION,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def bucket(self, name: str) -> str:
        urllib.request.urlopen(urllib.request.Request(f"{self.endpoint}/{name}", method="PUT"), timeout=30).close()
        return f"s3://{name}"


@contextmanager
def object_store() -> Iterator[ObjectStore]:
    port = free_ports(1)[0]
    command = [str(made_environment(REQUIREMENTS) / "bin" / "python"), str(FOLDER / "server.py"), str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert wait_until(lambda: process.poll() is not None or listens(port), 60), (
                "the object store does not start"
            )
            assert process.poll() is None, process.stderr.read() if process.stderr else ""
            yield ObjectStore(f"http://127.0.0.1:{port}")
        finally:
            process.terminate()
