"""The audit roots that a contract test runs with."""

import pytest

EVERYWHERE = ("disk", "s3")
"""A module with `ROOTS = EVERYWHERE` runs its tests of tables on the disk, and in an object store."""
ON_DISK = pytest.mark.parametrize("root", ["disk"], indirect=True)
"""A test of such a module that is about files of a disk."""
ON_BOTH = pytest.mark.parametrize("root", EVERYWHERE, indirect=True)
"""A test that runs on the disk, and in an object store."""
