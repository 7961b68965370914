"""The file of a lease, on a disk and in an object store: replaced whole, absent without an error, beside the tables."""

from pathlib import Path

import pytest

from ackline.audit.layout import lanes_of
from ackline.audit.lease_file import NAME, LeaseFile
from ackline.paths import lane_folder
from tests.contract.roots import EVERYWHERE, ON_DISK

ROOTS = EVERYWHERE


def test_a_file_is_written_replaced_and_removed(root: str) -> None:
    file = LeaseFile(lane_folder(root, "orders", "live"))
    assert file.read() is None
    file.remove()
    for content in (b"first", b"the second, which is longer", b"3"):
        file.write(content)
        assert LeaseFile(file.folder).read() == content
    file.remove()
    assert file.read() is None


def test_each_lane_has_a_file_of_its_own_which_no_reader_takes_for_a_lane(root: str) -> None:
    live, backfill = (LeaseFile(lane_folder(root, "orders", lane)) for lane in ("live", "backfill-1"))
    live.write(b"live")
    backfill.write(b"backfill")
    assert (live.read(), backfill.read()) == (b"live", b"backfill")
    assert lanes_of(root, "orders") == []


@ON_DISK
def test_no_scratch_file_is_left(root: str) -> None:
    file = LeaseFile(lane_folder(root, "orders", "live"))
    file.write(b"x")
    assert [path.name for path in (Path(root) / "orders").iterdir()] == [NAME]


@ON_DISK
def test_a_folder_that_cannot_be_written_is_an_oserror(root: str) -> None:
    Path(root).write_text("a file in place of the folder")
    file = LeaseFile(f"{root}/orders")
    with pytest.raises(OSError, match=r"Not a directory|Cannot create"):
        file.write(b"x")
