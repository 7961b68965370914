"""What the plugin tests share."""

import uuid
from collections.abc import Callable

import pytest


@pytest.fixture
def name() -> Callable[[], str]:
    """A factory of pipeline names that nobody else uses."""
    return lambda: f"p{uuid.uuid4().hex[:8]}"
