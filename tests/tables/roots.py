"""The audit roots that a contract test runs with."""

import pytest

ON_BOTH = pytest.mark.parametrize("root", ["disk", "s3"], indirect=True)
"""A test that runs on the disk, and in an object store: it holds what the adapter does there, and no rule above it."""
