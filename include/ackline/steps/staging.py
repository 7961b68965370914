"""Where the tasks of a turn stage rows for output tables: below the folder of the pipeline's live tables."""

from urllib.parse import quote

from ackline.paths import lane_folder
from ackline.steps.parts import Parts
from ackline.turns import LIVE, TurnId

_STAGING = ".staging"


def staging_root(parts: Parts) -> str:
    """Returns the folder below which all lanes of the pipeline stage rows: a path or URI."""
    return f"{lane_folder(parts.store.root, parts.pipeline.name, LIVE)}/{_STAGING}"


def folder_name(turn: TurnId) -> str:
    """Returns the name of a turn's folder below the staging root."""
    return f"{quote(turn.lane, safe='')}-{turn.epoch}-{turn.n}"


def staging_folder(parts: Parts, turn: TurnId) -> str:
    return f"{staging_root(parts)}/{folder_name(turn)}"
