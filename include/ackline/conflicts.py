"""Pipeline files that are valid alone and conflict with another file of the folder. Pure.

Two pipelines with the same group and a common topic would overwrite each other's committed offsets. Pipelines that read
each other's dead letters would pass a record that always fails round for ever.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ackline.kafka_block import KafkaBlock
    from ackline.pipeline import Pipeline


class Conflict(NamedTuple):
    """Two files that conflict: the one that is refused, the other one, the key at fault and the reason."""

    path: Path
    other: Path
    key: str
    reason: str


def conflicts(pipelines: Mapping[Path, "Pipeline"]) -> Iterator[Conflict]:
    """Each file that conflicts, once for each file that it conflicts with."""
    for path, pipeline in pipelines.items():
        for other_path, other in pipelines.items():
            if path == other_path:
                continue
            if pipeline.name == other.name:
                yield Conflict(path, other_path, "name", f"the same name {pipeline.name} as {other_path.name}")
            elif pipeline.kafka.group_id == other.kafka.group_id and _may_share_a_topic(pipeline.kafka, other.kafka):
                reason = f"the same group {pipeline.kafka.group_id} and a common topic as {other_path.name}"
                yield Conflict(path, other_path, "kafka.group_id", reason)
        back = _returns_dead_letters(path, pipelines)
        if back is not None:
            reason = (
                f"its dead letters come back to the topics that it reads, by way of {back.name}: a record that always "
                f"fails would go round for ever"
            )
            yield Conflict(path, back, "dead_letter", reason)


def _may_share_a_topic(kafka: "KafkaBlock", other: "KafkaBlock") -> bool:
    if kafka.named_topics is None and other.named_topics is None:
        return True  # two patterns: without the list of topics, one that matches both can't be ruled out
    if kafka.named_topics is None:
        return _may_share_a_topic(other, kafka)
    return any(other.subscribes_to_topic(topic) for topic in kafka.named_topics)


def _returns_dead_letters(path: Path, pipelines: Mapping[Path, "Pipeline"]) -> Path | None:
    """The file whose dead letters go to a topic of `path` and that gets its records, over any number of files, from the
    dead letters of `path`; None if there is none."""
    passed = {path}
    topics = [pipelines[path].dead_letter_topic]
    while topics:
        topic = topics.pop()
        for other, pipeline in pipelines.items():
            if topic is None or other in passed or not pipeline.kafka.subscribes_to_topic(topic):
                continue
            passed.add(other)
            letters = pipeline.dead_letter_topic
            if letters is not None and pipelines[path].kafka.subscribes_to_topic(letters):
                return other
            topics.append(letters)
    return None
