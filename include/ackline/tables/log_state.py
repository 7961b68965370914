"""What the log of a table holds beside its list of files: transaction ids, properties, columns and the newest commits.

delta-rs loads the metadata of every file when it opens a table. The steps of a turn need little of it: they decide by
transaction ids, and read rows of the newest turns, whose files the newest log entries name. So the cost of a turn does
not grow with the files of other days.
"""

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake.schema import Schema

from ackline.tables.log import DeltaLog

RELOAD_AFTER = 60.0
"""Seconds for which a state is brought up to date by the entries since, instead of loaded anew. Far below the time for
which entries stay, so that none of them can be gone."""
_SEARCHED_ENTRIES = 64
"""How many of the newest entries are searched for a commit. A turn has a handful of commits in each table."""
_OF_NO_FILE = {"txn": "txn.appId", "metaData": "metaData.id", "protocol": "protocol.minReaderVersion"}
"""The actions of a checkpoint that concern no file, each with a column that every such action has."""
Action = Mapping[str, Any]


@dataclass(frozen=True)
class LogState:
    """A version of a table, without its files."""

    version: int
    transactions: Mapping[str, int]
    """The last number of each application."""
    metadata: Action
    """Delta's action `metaData`: the properties and the columns of the table."""
    protocol: Action

    def version_of(self, application: str) -> int | None:
        """Returns the last number that was committed under a transaction id, or None."""
        return self.transactions.get(application)

    @property
    def configuration(self) -> dict[str, str]:
        """The properties of the table."""
        return dict(self.metadata.get("configuration", {}))

    @cached_property
    def schema(self) -> Schema:
        """The columns of the table."""
        return Schema.from_json(self.metadata["schemaString"])

    def after(self, version: int, actions: Iterable[Action]) -> "LogState":
        """Returns the state after the entry of the next version."""
        numbers, changed = dict(self.transactions), {}
        for action in actions:
            if "txn" in action:
                numbers[action["txn"]["appId"]] = action["txn"]["version"]
            if "metaData" in action:
                changed["metadata"] = action["metaData"]
            if "protocol" in action:
                changed["protocol"] = action["protocol"]
        return replace(self, version=version, transactions=numbers, **changed)


class LogStates:
    """Reads the newest state of one log. Keeps it, and reads only the entries since at the next call."""

    def __init__(self, log: DeltaLog) -> None:
        self._log = log
        self._state: LogState | None = None
        self._loaded_at = 0.0

    def newest(self) -> LogState | None:
        """Returns the newest state, or None if there is no log. The caller may act on it: its entry is on the disk.

        Raises TornEntryError if an entry is not whole, and OSError, ValueError or ArrowException if the log can't be
        read or lacks an entry.
        """
        try:
            if self._state is None or self._is_outdated(self._state):
                self._state, self._loaded_at = self._load(), time.monotonic()
            if self._state is not None:
                self._state = self._with_later_entries(self._state)
                self._log.secure(self._state.version)
        except BaseException:
            self._state = None
            raise
        return self._state

    def _is_outdated(self, state: LogState) -> bool:
        # The newest entry of a log never expires. If it is gone, an operator has put another log in its place, and the
        # next entry must follow that log.
        return time.monotonic() - self._loaded_at >= RELOAD_AFTER or not self._log.has_entry(state.version)

    def _load(self) -> LogState | None:
        self._log.forget()
        files = self._log.files()
        if not files.entries and not files.checkpoints:
            return None
        state = LogState(-1, {}, {}, {})
        if files.checkpoints:
            checkpoint = files.checkpoints[-1]
            state = state.after(checkpoint.version, self._checkpointed(checkpoint.path))
        state = self._with_later_entries(state)
        newest = max(file.version for file in (*files.entries, *files.checkpoints))
        if state.version < newest or not state.metadata or not state.protocol:
            raise ValueError(f"its log has no entry {state.version + 1}; restore its folder from a backup")
        return state

    def _with_later_entries(self, state: LogState) -> LogState:
        while (actions := self._log.entry(state.version + 1)) is not None:
            state = state.after(state.version + 1, actions)
        return state

    def _checkpointed(self, path: str) -> list[Action]:
        """Returns the actions of a checkpoint that concern no file: a few columns of a few rows, if Ackline has written
        it, whatever the number of files."""
        with self._log.storage.filesystem.open_input_file(path) as file, pq.ParquetFile(file) as checkpoint:
            groups = [group for group in range(checkpoint.num_row_groups) if _may_hold(checkpoint.metadata, group)]
            columns = checkpoint.read_row_groups(groups, columns=list(_OF_NO_FILE))
        return [{name: _as_in_entry(a)} for name in _OF_NO_FILE for a in pc.drop_null(columns[name]).to_pylist()]

    def files_since(self, state: LogState, applications: Sequence[str], number: int) -> list[Action] | None:
        """Returns the files of a version that the commit `number` of the first of these applications, or a later
        commit, has added; none if no application has reached the number.

        Rows that no commit before that one can have are in these files alone, also after a compaction, which adds a
        file of its own. Returns None if the newest entries do not hold the commit, or if the table has a feature that
        only delta-rs reads.
        """
        application = next((a for a in applications if state.transactions.get(a, -1) >= number), None)
        if application is None:
            return []
        if state.protocol.get("minReaderVersion", 1) > 1:
            return None
        added: list[Action] = []
        removed: set[str] = set()
        for version in range(state.version, max(state.version - _SEARCHED_ENTRIES, -1), -1):
            actions = self._log.entry(version)
            if actions is None:  # expired
                return None
            # From the newest entry to older ones: what a later entry has removed is known by then.
            added += [action["add"] for action in actions if "add" in action and action["add"]["path"] not in removed]
            removed.update(action["remove"]["path"] for action in actions if "remove" in action)
            if _has_transaction(actions, application, number):
                return added
        return None

    def commit_info(self, state: LogState, key: str, value: str, limit: int) -> Action | None:
        """Returns the metadata of the commit whose `key` is `value`, if it is among the newest `limit` commits."""
        for version in range(state.version, max(state.version - limit, -1), -1):
            actions = self._log.entry(version)
            if actions is None:
                return None
            for action in actions:
                info: Action = action.get("commitInfo", {})
                if info.get(key) == value:
                    return info
        return None


def _may_hold(checkpoint: pq.FileMetaData, group: int) -> bool:
    """Returns whether the statistics of a row group allow an action that concerns no file."""
    rows = checkpoint.row_group(group)
    columns = [rows.column(number) for number in range(rows.num_columns)]
    chosen = [column for column in columns if column.path_in_schema in _OF_NO_FILE.values()]
    return len(chosen) < len(_OF_NO_FILE) or any(
        column.statistics is None
        or not column.statistics.has_null_count
        or column.statistics.null_count < column.num_values
        for column in chosen
    )


def _as_in_entry(action: Action) -> dict[str, Any]:
    """Returns an action of a checkpoint as an entry holds it: without nulls, and with mappings in place of pairs."""
    known = {name: value for name, value in action.items() if value is not None}
    if "configuration" in known:
        known["configuration"] = dict(known["configuration"])
        known["format"] = {**known["format"], "options": dict(known["format"]["options"])}
    return known


def _has_transaction(actions: Iterable[Action], application: str, number: int) -> bool:
    return any(a["txn"]["appId"] == application and a["txn"]["version"] == number for a in actions if "txn" in a)


def stats_of(file: Action) -> dict[str, Any]:
    """Returns the statistics of an `add` action; none if it has none."""
    return dict(json.loads(file.get("stats") or "{}"))
