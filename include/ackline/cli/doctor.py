"""`ackline doctor` checks each thing that a run needs."""

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ackline.audit.conditional_put import prove_conditional_put
from ackline.audit.layout import all_lanes
from ackline.audit.object_store import is_remote
from ackline.audit.schemas import TABLES
from ackline.audit.table import AuditTable
from ackline.cli.connection import connection_of, uses_dev_broker
from ackline.cli.options import pipeline_named
from ackline.errors import AcklineError, FatalError
from ackline.handler import load_handler, tier_of
from ackline.kafka.config import brokers
from ackline.kafka.registry import check_registry
from ackline.paths import audit_root, pipelines_folder
from ackline.pipeline import Pipeline
from ackline.pipeline_folder import load_folder
from ackline.scrub import scrub_address
from ackline.steps.ack_topic import checked_topic
from ackline.steps.output_checks import check_outputs
from ackline.steps.parts import Parts, new_run_id, open_parts
from ackline.steps.topic_warnings import topic_warnings
from ackline.stream_functions import load_functions, load_step
from ackline.topology import Step
from ackline.translation import Stream, Translation


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check."""

    name: str
    ok: bool
    detail: str
    """What was found, or what to do."""


def examine(name: str | None) -> Iterator[Check]:
    """Check the machine and the project, and pipeline `name` with its broker if a name is given."""
    yield _check("python", lambda: f"{sys.version.split()[0]}")
    yield _check("java", _java)
    yield _check("jars", _jars)
    yield _check("audit tables", _audit)
    yield from _files()
    if name is None:
        return
    try:
        pipeline = pipeline_named(name)
    except AcklineError as error:
        yield Check(f"pipeline {name}", False, str(error))
        return
    yield from _code(pipeline)
    yield from _broker(pipeline)


def _check(name: str, look: Callable[[], str]) -> Check:
    try:
        return Check(name, True, look())
    except (AcklineError, OSError, subprocess.SubprocessError) as error:
        return Check(name, False, str(error))


def _java() -> str:
    if shutil.which("java") is None:
        raise FatalError("not found: install Java 17 or later, e.g. the package openjdk-17-jre-headless")
    version = subprocess.run(["java", "-version"], capture_output=True, text=True, timeout=30).stderr
    found = re.search(r'version "(\d+)', version)
    if not found or int(found[1]) < 17:
        raise FatalError(
            f"too old ({version.splitlines()[0] if version else 'it prints no version'}): install Java 17 or later"
        )
    return version.splitlines()[0]


def _jars() -> str:
    from ackline.spark.jars import kafka_source_jars

    jars = kafka_source_jars()
    return f"{len(jars)} for Spark's Kafka source in {jars[0].parent}"


def _audit() -> str:
    root = audit_root()
    prove_conditional_put(root)
    if not is_remote(root):
        Path(root).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=root):
            pass
    for lane in all_lanes(root):
        for name in TABLES:
            AuditTable(lane.folder, name).open()
    return scrub_address(root)


def _files() -> Iterator[Check]:
    folder = pipelines_folder()
    loaded = load_folder(folder)
    yield Check("pipelines", bool(loaded.pipelines), f"{', '.join(loaded.pipelines) or 'none'} in {folder}")
    for error in loaded.broken.values():
        yield Check("pipeline file", False, str(error))


def _code(pipeline: Pipeline) -> Iterator[Check]:
    translation, topology = pipeline.translation, pipeline.topology
    emits, in_flight = topology is not None, pipeline.ack_topic is not None
    if translation is None:
        path, load = str(pipeline.handler), partial(load_handler, emits=emits, in_flight=in_flight)
        yield _check("handler", lambda: f"{path} ({tier_of(load(path))} tier)")
    else:
        for stream in translation.streams:
            name = f"stream {stream.name}" if stream.name else "handler"
            yield _check(name, partial(_stream, stream, emits, in_flight))
    if topology is not None:
        for step in topology.steps:
            yield _check(f"step {step.name}", partial(_step, step))


def _registry(translation: Translation) -> str:
    check_registry(translation)
    return f"reachable, {dict(translation.registry)['url']}"


def _step(step: Step) -> str:
    load_step(step)
    inputs, grouped = ", ".join(map(str, step.inputs)), ", by key" if step.grouped else ""
    return f"{inputs}{grouped} -> {step.handler}{' (join)' if step.join else ''}"


def _stream(stream: Stream, emits: bool, in_flight: bool) -> str:
    topics = ", ".join(stream.topics) if stream.topics else stream.pattern or "all topics"
    wanted = f" where {stream.filter}" if stream.filter else ""
    tier = load_functions(stream, emits=emits, in_flight=in_flight).tier
    return f"{topics}{wanted}, key {stream.key}, value {stream.value} -> {stream.handler} ({tier} tier)"


def _broker(pipeline: Pipeline) -> Iterator[Check]:
    try:
        connection = connection_of(pipeline)
        with open_parts(pipeline, connection, run_id=new_run_id("doctor"), actor="doctor") as parts:
            if parts.translation is not None and parts.translation.needs_registry:
                yield _check("schema registry", partial(_registry, parts.translation))
            source = " of `ackline dev`" if uses_dev_broker(pipeline) else ""
            address = f"{brokers(parts.kafka)}{source}"
            yield Check("broker", True, f"reachable at {address}, cluster {parts.cluster.reachable()}")
            of_ours = list(filter(None, [pipeline.dead_letter_topic, pipeline.ack_topic]))
            wanted = [*(pipeline.kafka.named_topics or ()), *of_ours]
            topics = parts.cluster.topics(wanted)
            for topic in wanted:
                found = topics.get(topic)
                gone = [
                    n for n in (pipeline.kafka.partitions or {}).get(topic, []) if found and n not in found.partitions
                ]
                waits = topic not in of_ours and pipeline.missing_topics == "wait"
                missing = "missing; it is read once it exists (`missing_topics: wait`)" if waits else "missing"
                detail = f"{len(found.partitions)} partitions" if found else missing
                detail += f"; partition {', '.join(map(str, gone))} of the file is missing" if gone else ""
                yield Check(f"topic {topic}", waits or (found is not None and not gone), detail)
            if pipeline.ack_topic in topics:
                yield _check("ack topic", partial(_ack_topic, parts, str(pipeline.ack_topic)))
            if pipeline.outputs:
                yield _check("outputs", partial(check_outputs, parts))
            yield from _warnings(parts, wanted)
            members = parts.group.members()
            detail = f"live members: {', '.join(members)}; nothing can be committed" if members else "no live members"
            yield Check(f"group {pipeline.kafka.group_id}", not members, detail)
    except AcklineError as error:
        yield Check("broker", False, str(error))


def _ack_topic(parts: Parts, topic: str) -> str:
    checked_topic(parts, topic)
    return f"{topic} is not compacted; {len(parts.token_keys or ())} keys verify tokens, the first one signs"


def _warnings(parts: Parts, topics: Iterable[str]) -> Iterator[Check]:
    """Yields the warnings about the settings. They fail no check."""
    found = list(parts.setting_warnings)
    try:
        found += topic_warnings(parts, topics)
    except AcklineError as error:
        found.append(f"retention and cleanup policy of the topics could not be read: {error}")
    for text in found:
        yield Check("settings", True, f"warning: {text}")
