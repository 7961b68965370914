"""Starts the S3 server of the tests, and makes its environment first if it is not there yet."""

import hashlib
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from ackline.local.processes import free_ports

FOLDER = Path(__file__).parent
REQUIREMENTS = FOLDER / "requirements.txt"
ENVIRONMENTS = FOLDER.parents[2] / ".ackline" / "object_store"
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
        """Creates a bucket, and returns its URI."""
        urllib.request.urlopen(urllib.request.Request(f"{self.endpoint}/{name}", method="PUT"), timeout=30).close()
        return f"s3://{name}"


@contextmanager
def object_store() -> Iterator[ObjectStore]:
    """Runs a server, and ends it with the context."""
    port = free_ports(1)[0]
    command = [str(environment() / "bin" / "python"), str(FOLDER / "server.py"), str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        try:
            _wait_for(port, process)
            yield ObjectStore(f"http://127.0.0.1:{port}")
        finally:
            process.terminate()


def _wait_for(port: int, process: "subprocess.Popen[str]") -> None:
    until = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            assert process.poll() is None, process.stderr.read() if process.stderr else ""
            assert time.monotonic() < until, "the object store does not start"
            time.sleep(0.05)


def environment() -> Path:
    """Returns the environment of the server. Makes it once for each version of the requirements."""
    version = hashlib.sha256(REQUIREMENTS.read_bytes() + sys.version.encode()).hexdigest()[:16]
    folder, done = ENVIRONMENTS / version, ENVIRONMENTS / f"{version}.done"
    ENVIRONMENTS.mkdir(parents=True, exist_ok=True)
    with FileLock(ENVIRONMENTS / "lock"):
        if not done.exists():
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
            _install(folder)
            done.touch()
    return folder


def _install(folder: Path) -> None:
    """Installs the pinned packages by pip, which finds the registry as the set-up of the project does."""
    pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([*pip, "--no-deps", "--require-hashes", "-r", str(REQUIREMENTS)], check=True, env=kept)
