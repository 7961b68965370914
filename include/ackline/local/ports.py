"""Finds free ports of the loopback interface for the servers that the demo, `ackline dev` and the tests start.

The ports are below the range from which the system gives ports to outgoing connections. So a server that is killed
finds its port still free when it starts again, and a client that connects meanwhile can't be connected to itself.
"""

import random
import socket
from pathlib import Path

from ackline.local.saved_broker import LOOPBACK

LOWEST = 15_000
_given: set[int] = set()


def free_ports(count: int) -> list[int]:
    """Returns `count` different ports on which no server listens. Raises OSError if there are too few.

    A process gets each port only once, because the server that got it before may not listen yet.
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
    """Returns whether a server could listen on the port now, on any interface."""
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
    """Returns the first port for outgoing connections; Linux's default if the system does not report a usable one."""
    try:
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError):
        return 32_768
    return first if first > LOWEST + 1_000 else 32_768
