"""Free ports of the loopback interface for the servers that tests and the demo start.

They lie below the range from which the system gives ports to outgoing connections: a server that is killed
must find its port free when it comes back, and a client that tries it meanwhile must not connect to itself.
"""

import random
import socket
from pathlib import Path

LOOPBACK = "127.0.0.1"
LOWEST = 15_000
_given: set[int] = set()


def free_ports(count: int) -> list[int]:
    """So many different ports on which nobody listens now. Raises OSError when there are none.

    A process is given each port once: who was given it before may not listen yet.
    """
    candidates = range(LOWEST, _first_outgoing())
    chosen = []
    for port in random.SystemRandom().sample(candidates, len(candidates)):
        if port not in _given and is_free(port):
            chosen.append(port)
        if len(chosen) == count:
            _given.update(chosen)
            return chosen
    raise OSError(f"no {count} free ports between {LOWEST} and {candidates.stop}")


def is_free(port: int) -> bool:
    """Whether a server could listen on the port now, on any interface."""
    for host in (LOOPBACK, ""):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                server.bind((host, port))
                server.listen(1)
            except OSError:
                return False
    return True


def _first_outgoing() -> int:
    try:
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError):
        return 32_768
    return first if first > LOWEST + 1_000 else 32_768
