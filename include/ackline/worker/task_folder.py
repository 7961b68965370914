"""The folder of a turn's Spark tasks below the audit root: proof that they share it, and that no part starts twice.

The driver writes a token into the folder before the job and removes it afterwards. A task looks for the token before
its first record, so an executor that joins later and does not share the root hands nothing out.

At most once a task also creates a marker, named after its part, before its first record. Where the marker exists, an
execution of this part may have called the handler, so the task refuses. Spark's attempt number proves nothing: it is 0
again in a stage that Spark submits anew. Names hold lane, epoch, turn and part.

Settle removes the tokens before the markers. A task creates its marker and then looks for its token again: if the
marker of an earlier execution is gone already, so is the token, and the task refuses all the same (I7).
"""

import os
import re
import socket
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from urllib.parse import quote

from ackline.errors import ConfigError, FatalError
from ackline.ledger.turns import TurnId
from ackline.tables.errors import is_outage, unusable_folder
from ackline.tables.folder import Folder
from ackline.tables.object_store import is_remote

_FOLDER = ".tasks"
_TOKEN = "driver-"
_TURN = re.compile(r"(?P<lane>.+)-(?P<epoch>\d+)-(?P<n>\d+)")


@dataclass(frozen=True, slots=True)
class TaskFolder:
    """What a task needs of the folder: it travels to the executors."""

    uri: str
    token: str
    once: bool
    """Whether a part of the job may be started once only."""

    def check(self, part: int | str) -> None:
        """Checks, before the first record of a part, that this process may hand its records out.

        Raises ConfigError if the folder is not shared or can't be written, FatalError if the part was started before,
        and TransientError if the object store does not answer.
        """
        folder, host = Folder(self.uri), socket.gethostname()
        try:
            self._find_token(folder, host)
            if not self.once:
                mark = f"part-{part}-{uuid.uuid4()}"
                folder.write(mark, b"")
                folder.remove(mark)
                return
            if not folder.create_exclusively(f"part-{part}"):
                raise FatalError(
                    "Spark tried a task again under at_most_once; the task's records may have been handled, so it "
                    "stops here"
                )
            self._find_token(folder, host)
        except OSError as error:
            if is_remote(self.uri) and is_outage(error):
                raise unusable_folder(self.uri, error) from None
            raise ConfigError(
                f"the executor on {host} can't use {self.uri}: {error.strerror or type(error).__name__}; give its user "
                f"the right to write below ACKLINE_AUDIT",
                key="ACKLINE_AUDIT",
            ) from None

    def _find_token(self, folder: Folder, host: str) -> None:
        # No cache of a file system holds an answer for this name, which is new: the first look asks the server.
        if folder.read(self.token) is None:
            raise ConfigError(
                f"the executor on {host} does not see {self.uri}/{self.token}: executors and driver do not share "
                f"ACKLINE_AUDIT, or another run has settled the turn meanwhile. Set ACKLINE_AUDIT to a folder that "
                f"all machines mount at the same path",
                key="ACKLINE_AUDIT",
            )


@contextmanager
def open_task_folder(table: str, turn: TurnId, once: bool) -> Iterator[TaskFolder]:
    """Creates the folder of a turn beside the outcomes table at `table`, with a token for the tasks of one job.

    Removes the token at the end of the context. Under at most once the markers stay until `remove_task_folders`.
    """
    uri = f"{_folder_of_turns(table)}/{quote(turn.lane, safe='')}-{turn.epoch}-{turn.n}"
    folder = Folder(uri)
    token = f"{_TOKEN}{uuid.uuid4()}"
    folder.write_first(token, b"driver")
    try:
        yield TaskFolder(uri, token, once)
    finally:
        folder.remove(token)
        folder.remove_if_empty()


def remove_task_folders(table: str, turn: TurnId) -> None:
    """Removes the folders of this turn and of the lane's earlier ones, which a killed driver may have left.

    Call it after settlement n is stored. What can't be removed stays until a later call.
    """
    turns = Folder(_folder_of_turns(table))
    with suppress(OSError):
        for name in turns.names():
            match = _TURN.fullmatch(name)
            if match is None or match["lane"] != quote(turn.lane, safe=""):
                continue
            if (int(match["epoch"]), int(match["n"])) <= (turn.epoch, turn.n):
                _remove_files(Folder(f"{turns.uri}/{name}"))


def _remove_files(folder: Folder) -> None:
    """Removes the tokens of a folder, and then the markers. While a token is left, the markers stay (I7)."""
    for file in folder.names():
        if file.startswith(_TOKEN):
            folder.remove(file)
    left = folder.names()
    if not any(file.startswith(_TOKEN) for file in left):
        for file in left:
            folder.remove(file)
        folder.remove_if_empty()


def _folder_of_turns(table: str) -> str:
    return f"{os.path.dirname(table.rstrip('/'))}/{_FOLDER}"
