"""A process gets each free port only once, because the server that got it may not listen yet."""

import pytest

from ackline.local import ports


def test_no_port_is_given_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "_given", set())
    monkeypatch.setattr(ports, "_first_outgoing", lambda: ports.LOWEST + 21)
    monkeypatch.setattr(ports, "is_free", lambda port: port != ports.LOWEST + 7)
    given = [port for _ in range(10) for port in ports.free_ports(2)]
    assert sorted(given) == [port for port in range(ports.LOWEST, ports.LOWEST + 21) if port != ports.LOWEST + 7]
    with pytest.raises(OSError, match="no 1 free ports"):
        ports.free_ports(1)
