"""Hooks: a class of the user's that is told what happened, in batches, after it is durable.

Name it in the pipeline file, `listener: module:Class`. It is made without arguments, anew in each process. What it
raises is logged and changes nothing: a listener is never able to break a run. An event may be told twice, or, where a
process dies between the event and the call, not at all; the tables are the record.
"""

import importlib
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from ackline.errors import ConfigError
from ackline.ledger import Committed, SettledPartition, TurnId
from ackline.offsets import TopicPartition
from ackline.planning import Plan

log = logging.getLogger(__name__)

Offsets = Mapping[TopicPartition, Sequence[int]]


class Listener:
    """Override what you want to hear."""

    def on_open(self, pipeline: str, run_id: str) -> None:
        """A step or command has opened the pipeline."""

    def on_planned(self, plan: Plan) -> None:
        """A plan was stored by this process."""

    def on_handled(self, turn: TurnId, counts: Mapping[TopicPartition, Mapping[str, int]]) -> None:
        """The outcomes of a turn were stored by this process: counts by outcome."""

    def on_acked(self, turn: TurnId, counts: Mapping[TopicPartition, int]) -> None:
        """A turn was settled in which records were acked."""

    def on_retry(self, turn: TurnId, offsets: Offsets) -> None:
        """A turn was settled in which these failed, and wait for another attempt."""

    def on_dead(self, turn: TurnId, offsets: Offsets) -> None:
        """A turn was settled in which these were given up; their dead letters are acknowledged."""

    def on_expired(self, turn: TurnId, ranges: Mapping[TopicPartition, Sequence[tuple[int, int]]]) -> None:
        """A turn was settled in which retention was found to have taken these ranges `(start, end)`."""

    def on_partitions_changed(self, partitions: Mapping[TopicPartition, SettledPartition]) -> None:
        """Partitions have joined the lane, and where they start."""

    def on_committed(self, committed: Mapping[TopicPartition, Committed]) -> None:
        """The group's offsets were committed and read back."""

    def on_close(self) -> None:
        """The step or command ends."""


def load_listener(path: str | None) -> Listener:
    """The listener named by `module:Class`, or one that hears nothing. Raises ConfigError where it can't be made."""
    if path is None:
        return Listener()
    module, _, name = path.partition(":")
    try:
        made = getattr(importlib.import_module(module), name)()
    except Exception as error:
        raise ConfigError(f"listener {path} can't be made: {type(error).__name__}: {error}", key="listener") from None
    if not isinstance(made, Listener):
        raise ConfigError(f"listener {path} is no ackline.listener.Listener", key="listener")
    return made


def tell(listener: Listener, event: str, *said: Any) -> None:
    """Call `listener.on_EVENT(*said)`; what it raises, sys.exit included, is logged."""
    try:
        getattr(listener, f"on_{event}")(*said)
    except (Exception, SystemExit) as error:
        log.warning("the listener's on_%s raised %s; the run goes on", event, type(error).__name__)
