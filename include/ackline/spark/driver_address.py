"""The address under which executors on other machines reach the driver."""

import re
import socket

_STANDALONE = re.compile(r"spark://\[?([^,\]]+?)\]?:(\d+)")


def address_towards(master: str) -> str | None:
    """Returns this machine's address in the network of a standalone master, where its executors reach the driver.

    Spark itself takes the first address that the machine's name has, which may be of another network. None for another
    kind of master, and for one whose name does not resolve: Spark then chooses the address.
    """
    standalone = _STANDALONE.match(master)
    if standalone is None:
        return None
    try:
        family, kind, _, _, address = socket.getaddrinfo(standalone[1], int(standalone[2]), type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)  # of a datagram socket: chooses a route and sends nothing
            return str(probe.getsockname()[0])
    except OSError:
        return None
