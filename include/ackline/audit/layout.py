"""Where the tables of each pipeline are.

A lane has three tables of its own: the live lane in ROOT/PIPELINE/{plans,outcomes,settlements}, another lane in
ROOT/PIPELINE/LANE/. So no step opens, lists, reads or locks what belongs to other pipelines and lanes: Delta loads the
metadata of every file when it opens a table, and a lock stops all writers of a table.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.fs as pafs

from ackline.audit.object_store import arrow_filesystem, is_remote, unusable
from ackline.audit.schemas import TABLES
from ackline.errors import ConfigError, FatalError
from ackline.paths import lane_folder
from ackline.scrub import scrub_address
from ackline.turns import LIVE


class LaneFolder(NamedTuple):
    """A lane of a pipeline, and the folder or URI of its tables."""

    pipeline: str
    lane: str
    folder: str


def lanes_of(root: str, pipeline: str) -> list[LaneFolder]:
    """Returns the lanes of a pipeline that have tables, the live one first. Raises FatalError if they can't be listed.

    Raises ConfigError if the tables below `root` have the first layout.
    """
    check_layout(root)
    folder = lane_folder(root, pipeline, LIVE)
    names = folders_in(folder)
    lanes = [LaneFolder(pipeline, LIVE, folder)] if names & set(TABLES) else []
    others = (LaneFolder(pipeline, name, lane_folder(root, pipeline, name)) for name in sorted(names - set(TABLES)))
    return lanes + [lane for lane in others if folders_in(lane.folder) & set(TABLES)]


def all_lanes(root: str) -> Iterator[LaneFolder]:
    """Yields the lanes of all pipelines, sorted by pipeline. Raises as `lanes_of` does."""
    for pipeline in sorted(folders_in(root)):
        yield from lanes_of(root, pipeline)


def check_layout(root: str) -> None:
    """Raises ConfigError if `root` holds the tables of the first layout, which all pipelines shared.

    Without this check every pipeline would begin a new ledger beside its old one.
    """
    if not is_remote(root) and Path(root).exists() and not Path(root).is_dir():
        raise FatalError(f"the tables can't be used: {root} is not a folder; set ACKLINE_AUDIT to one")
    for name in TABLES:
        if "_delta_log" in folders_in(f"{root.rstrip('/')}/{name}"):
            raise ConfigError(
                f"{scrub_address(root)} holds tables of Ackline's first layout, which all pipelines shared. This "
                f"version keeps the tables of each pipeline in a folder of its own. Point ACKLINE_AUDIT at an empty "
                f"folder, and take each consumer group over from its committed offsets",
                key="ACKLINE_AUDIT",
            )


def folders_in(folder: str) -> set[str]:
    """Returns the names of the folders in `folder`, without hidden ones; none if it does not exist."""
    try:
        if not is_remote(folder):
            path = Path(folder)
            names = {child.name for child in path.iterdir() if child.is_dir()} if path.is_dir() else set()
        else:
            store, base = arrow_filesystem(folder)
            infos = store.get_file_info(pafs.FileSelector(base, allow_not_found=True))
            names = {info.base_name for info in infos if info.type is pafs.FileType.Directory}
    except (OSError, pa.ArrowException) as error:
        raise unusable(f"the folder at {scrub_address(folder)}", error, folder) from error
    return {name for name in names if not name.startswith(".")}
