"""`ackline doctor`: each thing that a run needs, looked at one by one."""

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ackline.audit.schemas import TABLES
from ackline.audit.table import AuditTable
from ackline.cli.connection import connection_of
from ackline.cli.options import pipeline_named
from ackline.errors import AcklineError, FatalError
from ackline.handler import load_handler, tier_of
from ackline.kafka.registry import check_registry
from ackline.paths import audit_root, pipelines_folder
from ackline.pipeline import Pipeline
from ackline.pipeline_folder import load_folder
from ackline.scrub import scrub_address
from ackline.steps.parts import Parts, new_run_id, open_parts
from ackline.steps.topic_warnings import of_topics
from ackline.translation import Stream, Translation, load_code


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at: `detail` says what was found, or what to do."""

    name: str
    ok: bool
    detail: str


def examine(name: str | None) -> Iterator[Finding]:
    """Look at the machine and the project, and at pipeline `name` with its broker where one is given."""
    yield _look("python", lambda: f"{sys.version.split()[0]}")
    yield _look("java", _java)
    yield _look("jars", _jars)
    yield _look("audit tables", _audit)
    yield from _files()
    if name is None:
        return
    try:
        pipeline = pipeline_named(name)
    except AcklineError as error:
        yield Finding(f"pipeline {name}", False, str(error))
        return
    yield from _code(pipeline)
    yield from _broker(pipeline)


def _look(name: str, what: Callable[[], str]) -> Finding:
    try:
        return Finding(name, True, what())
    except (AcklineError, OSError, subprocess.SubprocessError) as error:
        return Finding(name, False, str(error))


def _java() -> str:
    if shutil.which("java") is None:
        raise FatalError("not found: install Java 17 or later, e.g. the package openjdk-17-jre-headless")
    said = subprocess.run(["java", "-version"], capture_output=True, text=True, timeout=30).stderr
    found = re.search(r'version "(\d+)', said)
    if not found or int(found[1]) < 17:
        raise FatalError(f"too old ({said.splitlines()[0] if said else 'silent'}): install Java 17 or later")
    return said.splitlines()[0]


def _jars() -> str:
    from ackline.spark.jars import kafka_source_jars

    jars = kafka_source_jars()
    return f"{len(jars)} for Spark's Kafka source in {jars[0].parent}"


def _audit() -> str:
    root = audit_root()
    if "://" not in root:
        Path(root).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=root):
            pass
    for name in TABLES:
        AuditTable(root, name).open()
    return scrub_address(root)


def _files() -> Iterator[Finding]:
    folder = pipelines_folder()
    loaded = load_folder(folder)
    yield Finding("pipelines", bool(loaded.pipelines), f"{', '.join(loaded.pipelines) or 'none'} in {folder}")
    for error in loaded.broken.values():
        yield Finding("pipeline file", False, str(error))


def _code(pipeline: Pipeline) -> Iterator[Finding]:
    translation = pipeline.translation
    if translation is None:
        path = str(pipeline.handler)
        yield _look("handler", lambda: f"{path} ({tier_of(load_handler(path))} tier)")
        return
    for one in translation.streams:
        yield _look(f"stream {one.name}" if one.name else "handler", partial(_stream, one))


def _registry(translation: Translation) -> str:
    check_registry(translation)
    return f"reachable, {dict(translation.registry)['url']}"


def _stream(one: Stream) -> str:
    topics = ", ".join(one.topics) if one.topics else one.pattern or "all topics"
    wanted = f" where {one.filter}" if one.filter else ""
    return f"{topics}{wanted}, key {one.key}, value {one.value} -> {one.handler} ({load_code(one).tier} tier)"


def _broker(pipeline: Pipeline) -> Iterator[Finding]:
    try:
        connection = connection_of(pipeline)
        with open_parts(pipeline, connection, run_id=new_run_id("doctor"), actor="doctor") as parts:
            if parts.translation is not None and parts.translation.needs_registry:
                yield _look("schema registry", partial(_registry, parts.translation))
            yield Finding("broker", True, f"reachable, cluster {parts.cluster.reachable()}")
            wanted = [*(pipeline.kafka.named_topics or ()), *filter(None, [pipeline.dead_letter_topic])]
            topics = parts.cluster.topics(wanted)
            for topic in wanted:
                found = topics.get(topic)
                gone = [
                    n for n in (pipeline.kafka.partitions or {}).get(topic, []) if found and n not in found.partitions
                ]
                detail = f"{len(found.partitions)} partitions" if found else "missing"
                detail += f"; partition {', '.join(map(str, gone))} of the file is missing" if gone else ""
                yield Finding(f"topic {topic}", found is not None and not gone, detail)
            yield from _cautions(parts, wanted)
            members = parts.group.members()
            detail = f"live members: {', '.join(members)}; nothing can be committed" if members else "no live members"
            yield Finding(f"group {pipeline.kafka.group_id}", not members, detail)
    except AcklineError as error:
        yield Finding("broker", False, str(error))


def _cautions(parts: Parts, topics: Iterable[str]) -> Iterator[Finding]:
    """What should be known of the settings; no reason to fail."""
    found = list(parts.cautions)
    try:
        found += of_topics(parts, topics)
    except AcklineError as error:
        found.append(f"retention and cleanup of the topics are not known: {error}")
    for text in found:
        yield Finding("settings", True, f"warning: {text}")
