"""Pipeline files that can't live beside one another: each may hold by itself. Pure.

Which of two owned the group's offsets would be left to chance; and dead letters that come round to where they started
would be read for ever.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ackline.pipeline import KafkaBlock, Pipeline


class Conflict(NamedTuple):
    """What is wrong with a file beside `other`, and the key of it that says so."""

    path: Path
    other: Path
    key: str
    reason: str


def conflicts(found: Mapping[Path, "Pipeline"]) -> Iterator[Conflict]:
    """Each file that can't stay as it is, with each that it can't stay beside."""
    for path, one in found.items():
        for other_path, other in found.items():
            if path == other_path:
                continue
            if one.name == other.name:
                yield Conflict(path, other_path, "name", f"the same name {one.name} as {other_path.name}")
            elif one.kafka.group_id == other.kafka.group_id and _share_a_topic(one.kafka, other.kafka):
                reason = f"the same group {one.kafka.group_id} and a common topic as {other_path.name}"
                yield Conflict(path, other_path, "kafka.group_id", reason)
        back = _comes_back(path, found)
        if back is not None:
            reason = (
                f"its dead letters come back to the topics that it reads, by way of {back.name}: a record that fails "
                f"everywhere would go round for ever"
            )
            yield Conflict(path, back, "dead_letter", reason)


def _share_a_topic(one: "KafkaBlock", other: "KafkaBlock") -> bool:
    if one.named_topics is None and other.named_topics is None:
        return True  # two patterns: whether they ever meet can't be told from here
    if one.named_topics is None:
        return _share_a_topic(other, one)
    return any(other.wants_topic(topic) for topic in one.named_topics)


def _comes_back(path: Path, found: Mapping[Path, "Pipeline"]) -> Path | None:
    """The file from which this one's dead letters would come back to it; None where they don't."""
    passed = {path}
    waiting = [found[path].dead_letter_topic]
    while waiting:
        topic = waiting.pop()
        for other, one in found.items():
            if topic is None or other in passed or not one.kafka.wants_topic(topic):
                continue
            passed.add(other)
            letters = one.dead_letter_topic
            if letters is not None and found[path].kafka.wants_topic(letters):
                return other
            waiting.append(letters)
    return None
