"""Where the project is, and the pipeline files of its folder, checked alone and beside one another.

Airflow calls these functions while it parses DAG files, so they read environment variables and, but for the pipeline
files, open no file. Files that are valid alone may conflict: two pipelines with the same group and a common topic would
overwrite each other's committed offsets, and pipelines that read each other's dead letters would pass a record that
always fails round for ever.
"""

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import ackline
from ackline.errors import ConfigError, did_you_mean
from ackline.ledger.turns import LIVE
from ackline.pipeline.blocks import KafkaBlock
from ackline.pipeline.pipeline import Pipeline, load
from ackline.pipeline.refusals import MAX_BYTES, line_of, read_yaml
from ackline.pipeline.uris import ENCODED, ENCODED_PROBLEM, root_uri


def project_root() -> Path:
    """The folder that relative settings start from: the project, if the package is in its `include/`; else the working
    directory."""
    include = Path(ackline.__file__).parents[1]
    return include.parent if include.name == "include" else Path.cwd()


def pipelines_folder() -> Path:
    """The folder of the pipeline files: ACKLINE_PIPELINES, or `include/pipelines` of the project."""
    return project_root() / (os.environ.get("ACKLINE_PIPELINES") or "include/pipelines")


def handlers_folder() -> Path:
    """The folder from which `handlers.…` is imported: the parent of the folder of pipeline files."""
    return pipelines_folder().resolve().parent


def audit_root() -> str:
    """The folder of the tables: ACKLINE_AUDIT, a path or an object-store URI, or `.ackline/audit` of the project.

    Raises ConfigError if it is a URI that can't name the folder of a table, or of a store that can't hold tables, and
    for a path that its clients read in different ways.
    """
    # An empty variable counts as unset: as a relative path it would make the project itself the folder of the tables.
    root = os.environ.get("ACKLINE_AUDIT") or ".ackline/audit"
    if root.startswith("file://"):
        root = root.removeprefix("file://")
    if "://" in root:
        return root_uri(root)
    path = str(project_root() / root)
    if ENCODED.search(path):
        raise ConfigError(f"ACKLINE_AUDIT={path} can't be used: {ENCODED_PROBLEM}", key="ACKLINE_AUDIT")
    return path


def check_audit_is_shared(hosts: str | None) -> None:
    """Raises ConfigError if ACKLINE_AUDIT is not set, and what works on the tables runs on more than one host.

    `hosts` is why it does, as a clause; None if it does not. Each host would have a folder of its own, and a task on
    one would miss what a task on another has stored.
    """
    if hosts is not None and not os.environ.get("ACKLINE_AUDIT"):
        raise ConfigError(
            f"ACKLINE_AUDIT is not set, so the tables would be in {audit_root()} of each host, and {hosts}: set it to "
            f"a folder that all hosts mount at the same path, or to the URI of an object store",
            key="ACKLINE_AUDIT",
        )


def lane_folder(root: str, pipeline: str, lane: str) -> str:
    """Returns the folder, or the URI in an object store, of the three tables of a lane."""
    folder = f"{root.rstrip('/')}/{pipeline}"
    return folder if lane == LIVE else f"{folder}/{lane}"


def make_handlers_importable() -> None:
    """Put the handlers' folder first on the import path of this process, and of the Python workers that Spark starts
    from it. Airflow puts the folder of a bundle last, where a package of the same name would hide its handlers."""
    folder = str(handlers_folder())
    sys.path[:] = [folder, *(entry for entry in sys.path if entry != folder)]
    path = [folder, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(path))


class Conflict(NamedTuple):
    """Two files that conflict: the one that is refused, the other one, the key at fault and the reason."""

    path: Path
    other: Path
    key: str
    reason: str


def conflicts(pipelines: Mapping[Path, Pipeline]) -> Iterator[Conflict]:
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

    def __init__(self, pipelines: Mapping[Path, Pipeline]) -> None:
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

    def that_may_share_a_topic_with(self, kafka: KafkaBlock) -> Iterator[Path]:
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


def _returns_dead_letters(path: Path, pipelines: Mapping[Path, Pipeline], subscribers: _Subscribers) -> Path | None:
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


_SUFFIXES = (".yaml", ".yml")
_NAME = re.compile(r"""^name:\s*["']?([^"'#\s]+)""", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class LoadedFolder:
    """The valid pipelines of a folder, by name, and the errors of the files that are refused, by path."""

    pipelines: Mapping[str, Pipeline]
    broken: Mapping[Path, ConfigError]


def load_folder(folder: Path) -> LoadedFolder:
    """Loads each `*.yaml` and `*.yml` of a folder. A file that is refused does not affect the others.

    Refuses both of two files with the same name, and both of two with the same group and a common topic: which one
    commits the group's offsets last would depend on chance. Refuses files whose dead letters come back to them.
    """
    valid: dict[Path, Pipeline] = {}
    broken: dict[Path, ConfigError] = {}
    for path in pipeline_files(folder):
        try:
            valid[path] = load(path)
        except ConfigError as error:
            broken[path] = error
    for path, _, key, reason in conflicts(valid):
        line = line_of(read_yaml(path)[0], key.split("."))
        broken[path] = ConfigError(f"{path}:{line}: {key}: {reason}", file=path, key=key)
    return LoadedFolder({p.name: p for path, p in valid.items() if path not in broken}, broken)


def check_folder(folder: Path) -> None:
    """Raises ConfigError if the folder of pipeline files does not exist."""
    if not folder.is_dir():
        raise ConfigError(
            f"no folder of pipeline files at {folder}; set ACKLINE_PIPELINES, or start in the folder that holds "
            f"include/pipelines"
        )


def find_pipeline(folder: Path, name: str) -> Pipeline:
    """Returns the pipeline `name` of a folder.

    Raises ConfigError if the folder does not exist or has no such pipeline, or with the problems of its file.
    """
    check_folder(folder)
    loaded = load_folder(folder)
    if name in loaded.pipelines:
        return loaded.pipelines[name]
    for path, error in loaded.broken.items():
        if name in (path.stem, _guess_name(path)):
            raise error
    names = ", ".join(sorted(loaded.pipelines)) or "none"
    near = did_you_mean(name, loaded.pipelines)
    raise ConfigError(
        f"no pipeline named {name} in {folder}{near or ';'} {'W' if near else 'w'}rite one of these names: {names}"
    )


def load_pipeline(folder: Path, name: str) -> Pipeline:
    """Returns the pipeline `name` from its own file, without loading the others.

    For a task or a driver, whose file the DAG processor has checked together with the others. Among 10,000 files it
    takes a fraction of a second: a file `NAME.yaml` is looked at first, then the line `name:` of each file. Raises
    ConfigError as `find_pipeline` does.
    """
    path = own_file(folder, name)
    return find_pipeline(folder, name) if path is None else load(path)


def own_file(folder: Path, name: str) -> Path | None:
    """Returns the file that gives its pipeline this name, without a check of the file; None without one."""
    return next((path for path in _own_file_first(folder, name) if _guess_name(path) == name), None)


def _own_file_first(folder: Path, name: str) -> Iterator[Path]:
    yield from (path for suffix in _SUFFIXES if (path := folder / f"{name}{suffix}").is_file())
    yield from pipeline_files(folder)


def pipeline_files(folder: Path) -> list[Path]:
    """Returns the files that may be pipeline files, by name."""
    return sorted(path for path in folder.glob("*") if path.suffix in _SUFFIXES and not path.is_dir())


def _guess_name(path: Path) -> str:
    """Returns the name that a refused file seems to give its pipeline; empty if none is found."""
    try:
        if not path.is_file():  # a device may have no end
            return ""
        with path.open(encoding="utf-8-sig", errors="replace") as file:
            match = _NAME.search(file.read(MAX_BYTES))
    except OSError:
        return ""
    return match[1] if match else ""
