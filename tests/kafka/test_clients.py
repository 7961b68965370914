"""What a client's refusal of its configuration shows."""

import pytest

from ackline.errors import ConfigError
from ackline.kafka import clients


def test_i13_a_refused_configuration_is_not_repeated() -> None:
    with pytest.raises(ConfigError, match="refuses its configuration") as raised:
        clients.admin({"bootstrap.servers": "127.0.0.1:9092", "ssl.key.pem": 5, "secret.x": "canary"})
    assert "canary" not in str(raised.value)
