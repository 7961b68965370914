"""Pipeline files that are valid alone and conflict with another file of the folder. Pure.

Two pipelines with the same group and a common topic would overwrite each other's committed offsets. Pipelines that read
each other's dead letters would pass a record that always fails round for ever.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
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
    """Yields each file that conflicts, once for each reason, with the first other file that gives this reason.

    Takes time in proportion to the number of files, their topics and their patterns: Airflow parses the folder every
    few seconds.
    """
    by_name: dict[str, list[Path]] = {}
    by_group: dict[str, dict[Path, Pipeline]] = {}
    for path, pipeline in pipelines.items():
        by_name.setdefault(pipeline.name, []).append(path)
        by_group.setdefault(pipeline.kafka.group_id, {})[path] = pipeline
    subscribers_of_group = {group: _Subscribers(members) for group, members in by_group.items() if len(members) > 1}
    subscribers = _Subscribers(pipelines)
    for path, pipeline in pipelines.items():
        same_name = _first_other(path, by_name[pipeline.name])
        if same_name is not None:
            yield Conflict(path, same_name, "name", f"the same name {pipeline.name} as {same_name.name}")
        group = pipeline.kafka.group_id
        if same_name is None and group in subscribers_of_group:
            other = _first_other(path, subscribers_of_group[group].that_may_share_a_topic_with(pipeline.kafka))
            if other is not None:
                reason = f"the same group {group} and a common topic as {other.name}"
                yield Conflict(path, other, "kafka.group_id", reason)
        back = _returns_dead_letters(path, pipelines, subscribers)
        if back is not None:
            reason = (
                f"its dead letters come back to the topics that it reads, by way of {back.name}: a record that always "
                f"fails would go round for ever"
            )
            yield Conflict(path, back, "dead_letter", reason)


def _first_other(path: Path, others: Iterable[Path]) -> Path | None:
    return next((other for other in others if other != path), None)


class _Subscribers:
    """The files that subscribe to a topic, found without a look at every file."""

    def __init__(self, pipelines: Mapping[Path, "Pipeline"]) -> None:
        self._named: dict[str, list[Path]] = {}
        self._patterns: list[tuple[re.Pattern[str], Path]] = []
        self._of_topic: dict[str, list[Path]] = {}
        for path, pipeline in pipelines.items():
            for topic in pipeline.kafka.named_topics or ():
                self._named.setdefault(topic, []).append(path)
            if pipeline.kafka.pattern is not None:
                self._patterns.append((re.compile(pipeline.kafka.pattern), path))

    def of(self, topic: str) -> list[Path]:
        """Returns the files that subscribe to a topic."""
        if topic not in self._of_topic:
            matching = [path for pattern, path in self._patterns if pattern.fullmatch(topic)]
            self._of_topic[topic] = self._named.get(topic, []) + matching
        return self._of_topic[topic]

    def that_may_share_a_topic_with(self, kafka: "KafkaBlock") -> Iterator[Path]:
        """Yields the files with a topic that `kafka` subscribes to.

        Two patterns may share one: without the list of topics, one that matches both can't be ruled out.
        """
        if kafka.pattern is None:
            for topic in kafka.named_topics or ():
                yield from self.of(topic)
            return
        yield from (path for _, path in self._patterns)
        for topic, paths in self._named.items():
            if kafka.subscribes_to_topic(topic):
                yield from paths


def _returns_dead_letters(path: Path, pipelines: Mapping[Path, "Pipeline"], subscribers: _Subscribers) -> Path | None:
    """Returns the file whose dead letters go to a topic of `path` and that gets its records, over any number of files,
    from the dead letters of `path`; None if there is none."""
    passed = {path}
    topics = [pipelines[path].dead_letter_topic]
    while topics:
        topic = topics.pop()
        for other in subscribers.of(topic) if topic is not None else ():
            if other in passed:
                continue
            passed.add(other)
            letters = pipelines[other].dead_letter_topic
            if letters is not None and pipelines[path].kafka.subscribes_to_topic(letters):
                return other
            topics.append(letters)
    return None
