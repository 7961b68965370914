"""A process gets each free port only once, because the server that got it may not listen yet."""

import pytest

from ackline.local import processes


def test_no_port_is_given_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_given", set())
    monkeypatch.setattr(processes, "_first_outgoing", lambda: processes.LOWEST + 21)
    monkeypatch.setattr(processes, "is_free", lambda port: port != processes.LOWEST + 7)
    given = [port for _ in range(10) for port in processes.free_ports(2)]
    assert sorted(given) == [
        port for port in range(processes.LOWEST, processes.LOWEST + 21) if port != processes.LOWEST + 7
    ]
    with pytest.raises(OSError, match="no 1 free ports"):
        processes.free_ports(1)
