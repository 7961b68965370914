"""The sentences about what does not hold, in the form `I4 orders[0] offset 7: …`."""

from collections.abc import Iterable

import numpy as np

from ackline.verify.evidence import TopicPartition

SHOWN = 3
"""How many offsets are named for one violation in one partition; the others are counted."""


class Findings:
    """Collects the violations that the rules find."""

    def __init__(self) -> None:
        self.sentences: list[str] = []

    def add(self, invariant: str, what: str, tp: TopicPartition | None = None) -> None:
        """Add a violation of a whole partition, or of the lane."""
        self.sentences.append(f"{invariant}{f' {tp}' if tp else ''}: {what}")

    def add_offsets(self, invariant: str, what: str, tp: TopicPartition, offsets: Iterable[int]) -> None:
        """Add a violation of each of `offsets`: a sentence for the lowest ones, and one with the number of the others.

        Nothing is added if there are no offsets, so a rule passes what it has found, however much that is.
        """
        found = np.unique(np.fromiter(offsets, dtype=np.int64))
        for offset in found[:SHOWN]:
            self.sentences.append(f"{invariant} {tp} offset {offset}: {what}")
        if len(found) > SHOWN:
            self.sentences.append(f"{invariant} {tp}: {what}, at {len(found) - SHOWN} more offsets")
