"""A receiver of StatsD over UDP, for the metrics that the tasks of a real Airflow send."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

GAUGE, COUNTER = "g", "c"
PREFIX = "airflow.ackline.partition."


@dataclass(frozen=True, slots=True)
class Received:
    """The lines that have arrived at `port`, in order; Airflow's own metrics are not kept."""

    port: int
    lines: list[str] = field(default_factory=list)

    def values(self, kind: str, *tags: object) -> dict[str, list[float]]:
        """Returns the values of each metric of a partition, by its name without tags; `tags` are those in its name."""
        values: dict[str, list[float]] = {}
        ending = "." + ".".join(map(str, tags))
        for line in self.lines:
            name, _, rest = line.partition(":")
            value, _, line_kind = rest.partition("|")
            if line_kind == kind and name.startswith(PREFIX) and name.endswith(ending):
                values.setdefault(name.removeprefix(PREFIX).removesuffix(ending), []).append(float(value))
        return values

    def last(self, *tags: object) -> dict[str, float]:
        """Returns the last value of each gauge of a partition."""
        return {name: values[-1] for name, values in self.values(GAUGE, *tags).items()}

    def sums(self, *tags: object) -> dict[str, float]:
        """Returns the sum of each counter of a partition."""
        return {name: sum(values) for name, values in self.values(COUNTER, *tags).items()}

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which Airflow sends its metrics here."""
        names = {"ON": "True", "HOST": "127.0.0.1", "PORT": str(self.port)}
        return {f"AIRFLOW__METRICS__STATSD_{name}": value for name, value in names.items()}


@contextmanager
def receiver() -> Iterator[Received]:
    """Receives on a free port until the block ends."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        server.bind(("127.0.0.1", 0))
        server.settimeout(0.2)
        received, done = Received(server.getsockname()[1]), threading.Event()

        def receive() -> None:
            while not done.is_set():
                try:
                    lines = server.recv(65536).decode().splitlines()
                except TimeoutError:
                    continue
                received.lines.extend(line for line in lines if line.startswith("airflow.ackline."))

        thread = threading.Thread(target=receive)
        thread.start()
        try:
            yield received
        finally:
            done.set()
            thread.join()
