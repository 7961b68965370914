"""`ackline doctor` checks each thing that a run needs, of one pipeline or, for a probe, of all of them."""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import typer
from packaging.requirements import Requirement

from ackline.answers.explain import explanations_of
from ackline.answers.status import PartitionStatus, Unreachable, status_and_missing
from ackline.backfill.perform import backfill_pipeline
from ackline.backfill.run import backfills, standstill_of
from ackline.cli import formats, tables
from ackline.cli.options import Json, opened_to_read
from ackline.delta.errors import check_temporary_folder
from ackline.delta.folder import prove_conditional_put
from ackline.delta.object_store import is_remote
from ackline.errors import (
    AcklineError,
    ConfigError,
    FatalError,
    GroupBusy,
    GroupTaken,
    MissingRights,
    counted,
    did_you_mean,
)
from ackline.forms.scaffold import BREAKER
from ackline.handler import DEFAULT_STREAM, SOURCE, Tier, imported, load_handler, tier_of
from ackline.in_flight.ack_topic import checked_topic
from ackline.kafka.cluster import TopicInfo
from ackline.kafka.config import brokers
from ackline.kafka.registry import check_registry
from ackline.lane.adapters import Adapters, topic_warnings
from ackline.lane.rights import missing_rights, rights_text, topics_of_run
from ackline.ledger.backoff import duration_text
from ackline.ledger.states import LONGEST_TRANSACTION, SOON
from ackline.ledger.turns import Settlement
from ackline.local.connection import uses_dev_broker
from ackline.outputs.checks import check_outputs
from ackline.outputs.counted_rows import differing_rows
from ackline.outputs.expected import older_copies_of_backfills
from ackline.outputs.output_table import table_of
from ackline.pipeline.folder import LoadedFolder, audit_root, load_folder, make_handlers_importable, pipelines_folder
from ackline.pipeline.functions import load_functions, load_step
from ackline.pipeline.pipeline import Pipeline
from ackline.pipeline.streams import Stream, Translation
from ackline.pipeline.topology import Step, Topology
from ackline.pipeline.warnings import TopicPolicy
from ackline.scrub import scrub_address, texts_of_handler
from ackline.spark.master import chosen_master, connect_server
from ackline.steps.plan import check_own_topics
from ackline.tables.audit_table import AuditTable
from ackline.tables.layout import all_lanes
from ackline.tables.schemas import TABLES

OK, WARNING, ERROR = "ok", "warning", "error"
"""The states of a check, from the best to the worst. A warning stops no run."""
_WARNING = "warning: "
_HAVE_CHECKS = {each.__name__ for each in (ConfigError, GroupBusy, GroupTaken, MissingRights)}
"""The reasons of a stand-still that another check may name."""


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check."""

    name: str
    ok: bool
    detail: str
    """What was found, or what to do. It begins with `warning: ` if no run fails for it now."""

    @property
    def state(self) -> str:
        """`ok`, `warning` or `error`."""
        return ERROR if not self.ok else WARNING if self.detail.startswith(_WARNING) else OK


Every = Annotated[bool, typer.Option("--all", help="Check the machine once, and every pipeline of the folder.")]


def doctor(
    name: Annotated[str | None, typer.Argument(help="Also check this pipeline against its broker.")] = None,
    every: Every = False,
    as_json: Json = False,
) -> None:
    """Check what a run needs: Java, JARs, pipeline files, handler, broker, topics, group, tables.

    The exit status is 1 if a check fails. With `--all` no pipeline that fails hides another one.

    Examples: `ackline doctor`, `ackline doctor orders`, `ackline doctor --all --json`
    """
    if not every:
        checks = list(_each_once(examine(name)))
        if as_json:
            formats.print_json([{"check": check.name, "ok": check.ok, "detail": check.detail} for check in checks])
        else:
            _print_checks(checks)
    elif name is not None:
        raise ConfigError(f"--all checks every pipeline, {name} among them: leave one of the two out", key="--all")
    else:
        machine, pipelines = examine_all()
        checks = [*machine, *(check for of_one in pipelines.values() for check in of_one)]
        if as_json:
            of_all = [{"pipeline": each, **_judged(of_one)} for each, of_one in pipelines.items()]
            formats.print_json({"state": _worst(checks), "machine": _judged(machine), "pipelines": of_all})
        else:
            _print_checks(machine)
            for each, of_one in pipelines.items():
                tables.console().print(f"\nPipeline {each}: {_worst(of_one)}")
                _print_checks(of_one)
    if not all(check.ok for check in checks):
        sys.exit(1)


def _each_once(checks: Iterable[Check]) -> Iterator[Check]:
    """Yields checks. One that fails for what an earlier one has named already refers to that one."""
    failed = list[Check]()
    for check in checks:
        earlier = next((one for one in failed if check.detail in one.detail), None) if not check.ok else None
        yield check if earlier is None else replace(check, detail=f"see {earlier.name}")
        failed += [check] * (not check.ok)


def _print_checks(checks: Iterable[Check]) -> None:
    out = tables.console()
    for check in checks:
        out.print("ok  " if check.ok else "FAIL", style="green" if check.ok else "red", end="")
        out.print(f" {check.name}: {check.detail}")


def _judged(checks: list[Check]) -> dict[str, Any]:
    """Returns checks as `--all --json` prints them, with the state of the worst one."""
    listed = [
        {"check": check.name, "state": check.state, "detail": check.detail.removeprefix(_WARNING)} for check in checks
    ]
    return {"state": _worst(checks), "checks": listed}


def _worst(checks: Iterable[Check]) -> str:
    return max((check.state for check in checks), key=(OK, WARNING, ERROR).index, default=OK)


def examine_all() -> tuple[list[Check], dict[str, list[Check]]]:
    """Checks the machine and every pipeline of the folder. Returns the checks of the machine, and those of each
    pipeline by its name, or by the name of its file if that is refused."""
    folder = pipelines_folder()
    loaded = load_folder(folder)
    # A file that is refused is a pipeline of its own there, whose state is an error.
    machine = [*_machine(), replace(_pipelines(folder, loaded), ok=bool(loaded.pipelines or loaded.broken))]
    make_handlers_importable()
    pipelines = {name: list(_each_once(_alone(name))) for name in loaded.pipelines}
    pipelines |= {path.stem: [Check("pipeline file", False, str(error))] for path, error in loaded.broken.items()}
    return machine, dict(sorted(pipelines.items()))


def _alone(name: str) -> list[Check]:
    """Returns the checks of one pipeline; whatever keeps it from being checked is the last one."""
    checks = list[Check]()
    try:
        with opened_to_read(name, needs_state=False) as (adapters, away):
            standstills, others = _of_pipeline(adapters, away)
            checks += [*standstills, *others]
    except AcklineError as error:
        checks.append(Check(f"pipeline {name}", False, str(error)))
    except Exception as error:  # a probe has to judge the other pipelines, too
        detail = f"it could not be checked ({type(error).__name__}); `ackline doctor {name}` shows the error"
        checks.append(Check(f"pipeline {name}", False, detail))
    return checks


def examine(name: str | None) -> Iterator[Check]:
    """Check the machine and the project, and pipeline `name` with its broker if a name is given."""
    if name is None:
        yield from _machine()
        yield from _files(None)
        return
    with ExitStack() as stack:
        try:
            adapters, away = stack.enter_context(opened_to_read(name, needs_state=False))
        except AcklineError as error:
            yield from _machine()
            named = list(_files(name))
            yield from named
            if not any(check.detail == str(error) for check in named):
                yield Check(f"pipeline {name}", False, str(error))
            return
        standstills, others = _of_pipeline(adapters, away)
        yield from standstills
        yield from _machine()
        yield from _files(name)
        yield from others


def _of_pipeline(adapters: Adapters, away: Unreachable | None) -> tuple[list[Check], list[Check]]:
    """Returns what the lanes of a pipeline stand still for, and its other checks."""
    others = [*_code(adapters.pipeline), *_breaker(adapters.pipeline), *_broker(adapters, away), *_rows(adapters)]
    fails = any(not check.ok for check in others)
    return list(_standstills(adapters, away, fails)), others


def _machine() -> Iterator[Check]:
    yield _check("python", lambda: f"{sys.version.split()[0]}")
    yield _check("packages", _packages)
    yield _check("java", _java)
    yield _check("jars", _jars)
    yield _check("spark master", _master)
    yield _check("temporary files", check_temporary_folder)
    yield _check("audit tables", _audit)


def _master() -> str:
    master = chosen_master()
    server = connect_server(master.url)
    if server is None:
        more = [name for name in ("PYSPARK_SUBMIT_ARGS", "JAVA_TOOL_OPTIONS") if os.environ.get(name)]
        return ", with the options of ".join([str(master), *filter(None, [" and ".join(more)])])
    from ackline.spark.connect import describe_server

    return f"{describe_server(server)} ({master.source})"


def _standstills(adapters: Adapters, away: Unreachable | None, fails: bool) -> Iterator[Check]:
    """Yields what the live lane stands still for, and each lane of a backfill that is not settled. `fails` says
    whether another check of the pipeline fails."""
    name, reads_broker = adapters.pipeline.name, away is None
    found = standstill_of(adapters, reads_broker)
    # A setting that stops the first run of all has a check of its own. A ledger that is lost has not.
    is_named = fails and found is not None and found.reason in _HAVE_CHECKS and _newest(adapters) is None
    if found is not None and not is_named:
        yield Check(f"lane {name}", False, found.line)
    # What keeps the backfills from being read stops the live lane too, or is an error of a later check.
    with suppress(AcklineError):
        for backfill in (each for each in backfills(adapters.store) if not each.account.settled):
            lane = backfill.genesis.turn.lane
            arguments = replace(backfill.arguments, handler=None, where=None)
            pipeline = backfill_pipeline(adapters.pipeline, lane, arguments)
            of_lane = replace(adapters, pipeline=pipeline, store=adapters.store.other_lane(lane))
            if (found := standstill_of(of_lane, reads_broker)) is not None:
                yield Check(f"lane {name} {lane}", False, found.line)


def _check(name: str, look: Callable[[], str]) -> Check:
    try:
        return Check(name, True, look())
    except (AcklineError, OSError, subprocess.SubprocessError) as error:
        return Check(name, False, str(error))


def _packages() -> str:
    """Raises FatalError if an installed package has a version that Ackline is not for. What is not installed, as the
    packages of an extra, is no error: its use is."""
    wrong, right = list[str](), 0
    try:
        wanted = metadata.requires("ackline") or []
    except metadata.PackageNotFoundError:
        return "not checked: ackline is on the import path, and not installed"
    for required in map(Requirement, wanted):
        with suppress(metadata.PackageNotFoundError):
            version = metadata.version(required.name)
            if required.specifier.contains(version, prereleases=True):
                right += 1
            else:
                wrong.append(f"{required.name} {version}, and Ackline needs {required.specifier}")
    if wrong:
        raise FatalError(f"{'; '.join(wrong)}: install these versions")
    return f"{counted(right, 'package')} of the right versions"


def _java() -> str:
    from ackline.spark.jars import java

    version = subprocess.run([java(), "-version"], capture_output=True, text=True, timeout=30).stderr
    found = re.search(r'version "(\d+)', version)
    if not found or int(found[1]) < 17:
        raise FatalError(
            f"too old ({version.splitlines()[0] if version else 'it prints no version'}): install Java 17 or later"
        )
    return version.splitlines()[0]


def _jars() -> str:
    from ackline.spark.jars import jar_settings, verify

    settings = jar_settings()
    if paths := [Path(path) for path in settings.get("spark.jars", "").split(",") if path]:
        verify(["spark"])
        return f"{len(paths)} for Spark's Kafka source in {paths[0].parent}"
    return f"Spark fetches {packages}" if (packages := settings.get("spark.jars.packages")) else "those of the cluster"


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


def _files(name: str | None) -> Iterator[Check]:
    """Yields what the folder of pipeline files holds. Beside the pipeline `name`, another file that is broken is a
    warning: it stops no run of this one."""
    folder = pipelines_folder()
    loaded = load_folder(folder)
    yield _pipelines(folder, loaded)
    for path, error in loaded.broken.items():
        is_other = name is not None and path.stem != name
        yield Check("pipeline file", is_other, f"{_WARNING}{error}" if is_other else str(error))


def _pipelines(folder: Path, loaded: LoadedFolder) -> Check:
    if not (loaded.pipelines or loaded.broken):
        what = "no file" if folder.is_dir() else "no such folder"
        remedy = "set ACKLINE_PIPELINES, or write a first file with `ackline init`"
        return Check("pipelines", False, f"{what}: {folder}; {remedy}")
    return Check("pipelines", bool(loaded.pipelines), f"{', '.join(loaded.pipelines) or 'no valid one'} in {folder}")


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
        with suppress(Exception, SystemExit):  # a handler that does not import is a check of its own
            yield from map(partial(Check, "streams", True), _unknown_streams(pipeline, topology))


def _breaker(pipeline: Pipeline) -> Iterator[Check]:
    """Yields a warning for a pipeline without a breaker."""
    if pipeline.breaker is None:
        text = (
            "without the key `breaker` each record that a bad deploy fails uses up an attempt, and may die; write "
            f"`breaker: {BREAKER}`, and such a turn is void"
        )
        yield Check("breaker", True, f"{_WARNING}{text}")


def _unknown_streams(pipeline: Pipeline, topology: Topology) -> Iterator[str]:
    """Yields a warning for each stream that a step or an output takes, and whose name does not stand in the source of
    the handler that would have to emit it. A handler may make up the name, so it is no error."""
    sources = {step.name: [step.handler] for step in topology.steps}
    sources[SOURCE] = list(pipeline.handlers)
    for stream in topology.streams:
        handlers = sources[stream.step]
        texts = frozenset[str]().union(*(texts_of_handler(imported(path)) for path in handlers))
        if stream.name != DEFAULT_STREAM and stream.name not in texts:
            near = did_you_mean(stream.name, [text for text in texts if len(text) <= 2 * len(stream.name)])
            yield (
                f"warning: {stream.step}.{stream.name} is taken, and that name does not stand in the source of "
                f"{' or '.join(handlers)}{near}"
            )


def _registry(translation: Translation) -> str:
    check_registry(translation)
    return f"reachable, {dict(translation.registry)['url']}"


def _step(step: Step) -> str:
    batches = ["batches"] if tier_of(load_step(step)) is Tier.ARROW else []
    inputs, grouped = ", ".join(map(str, step.inputs)), ", by key" if step.grouped else ""
    kinds = ", ".join([*(["join"] if step.join else []), *batches])
    return f"{inputs}{grouped} -> {step.handler}{f' ({kinds})' if kinds else ''}"


def _stream(stream: Stream, emits: bool, in_flight: bool) -> str:
    topics = ", ".join(stream.topics) if stream.topics else stream.pattern or "all topics"
    wanted = f" where {stream.filter}" if stream.filter else ""
    tier = load_functions(stream, emits=emits, in_flight=in_flight).tier
    return f"{topics}{wanted}, key {stream.key}, value {stream.value} -> {stream.handler} ({tier} tier)"


def _broker(adapters: Adapters, away: Unreachable | None) -> Iterator[Check]:
    pipeline = adapters.pipeline
    try:
        if adapters.translation is not None and adapters.translation.needs_registry:
            yield _check("schema registry", partial(_registry, adapters.translation))
        if away is not None:
            raise away.error
        source = " of `ackline dev`" if uses_dev_broker(pipeline) else ""
        address = f"{brokers(adapters.kafka)}{source}"
        yield Check("broker", True, f"reachable at {address}, cluster {adapters.cluster.reachable()}")
        if missing := missing_rights(adapters, topics_of_run(adapters, _newest(adapters))):
            yield Check("rights", False, rights_text(adapters, missing))
            return
        yield Check("rights", True, "the login has all that a run needs")
        of_ours = list(filter(None, [pipeline.dead_letter_topic, pipeline.ack_topic, pipeline.rescue_topic]))
        wanted = [*(pipeline.kafka.named_topics or ()), *of_ours]
        topics = adapters.cluster.topics(wanted)
        for topic in wanted:
            yield _topic(adapters, topic, topics.get(topic), topic in of_ours)
        if pipeline.ack_topic in topics:
            yield _check("ack topic", partial(_ack_topic, adapters, str(pipeline.ack_topic)))
        if pipeline.rescue_topic in topics:
            yield from _rescue_topic(adapters, str(pipeline.rescue_topic))
        if pipeline.outputs:
            yield _check("outputs", partial(check_outputs, adapters))
            for lane, why in older_copies_of_backfills(adapters.store).items():
                yield Check(f"outputs of {lane}", False, why)
            yield from _shadows(adapters)
        yield from _warnings(adapters, [topic for topic in wanted if topic != pipeline.rescue_topic])
        yield from _logs(adapters)
        adapters.group.check_no_members()
        yield Check(f"group {pipeline.kafka.group_id}", True, "no live members")
    except GroupBusy as error:
        yield Check(f"group {pipeline.kafka.group_id}", False, str(error))
    except AcklineError as error:
        yield Check("broker", False, str(error))


def _shadows(adapters: Adapters) -> Iterator[Check]:
    """Yields the output tables of each shadow, so that a user finds those that may go."""
    for backfill in backfills(adapters.store):
        lane = backfill.genesis.turn.lane
        if backfill.arguments.shadow:
            of_lane = backfill_pipeline(adapters.pipeline, lane, replace(backfill.arguments, handler=None))
            names = [output.table for output in of_lane.outputs or () if output.table]
            there = [name for name in names if table_of(adapters.store, name).state() is not None]
            state = "settled" if backfill.account.settled else "not settled"
            yield Check(f"outputs of {lane}", True, f"a shadow, {state}; tables {', '.join(there) or 'none'}")


def _rows(adapters: Adapters) -> Iterator[Check]:
    """Yields a warning for each table that has other rows than the settled turns of a lane count."""
    with suppress(AcklineError):  # why a table can't be read, another check says
        for lane in adapters.store.lanes():
            for text in differing_rows(adapters.store.other_lane(lane)):
                yield Check(f"rows of {lane}", True, f"{_WARNING}{text}")


def _newest(adapters: Adapters) -> Settlement | None:
    with suppress(AcklineError):  # why it can't be read, another check says
        return adapters.store.newest()
    return None


def _topic(adapters: Adapters, topic: str, found: TopicInfo | None, of_ours: bool) -> Check:
    """Returns whether a topic exists with the partitions that the file names; `of_ours` if it is one that Ackline
    writes, or reads answers from."""
    pipeline = adapters.pipeline
    waits = not of_ours and pipeline.missing_topics == "wait"
    if found is not None:
        gone = [number for number in (pipeline.kafka.partitions or {}).get(topic, []) if number not in found.partitions]
        detail = counted(len(found.partitions), "partition")
        detail += f"; partition {', '.join(map(str, gone))} of the file is missing" if gone else ""
        return Check(f"topic {topic}", waits or not gone, detail)
    remedy = "correct its name or the connection, or create it"
    if topic in (pipeline.dead_letter_topic, pipeline.rescue_topic):
        return _check(f"topic {topic}", partial(_own_topic, adapters, topic))
    if waits:
        remedy = "it is read once it exists (`missing_topics: wait`)"
    elif not of_ours:
        remedy += ", or write `missing_topics: wait`"
    return Check(f"topic {topic}", waits, f"missing; {remedy}{did_you_mean(topic, adapters.cluster.names())}")


def _own_topic(adapters: Adapters, topic: str) -> str:
    check_own_topics(adapters)
    return f"{topic} exists"


def _ack_topic(adapters: Adapters, topic: str) -> str:
    checked_topic(adapters, topic)
    return f"{topic} is not compacted; {len(adapters.token_keys or ())} keys verify tokens, the first one signs"


def _rescue_topic(adapters: Adapters, topic: str) -> Iterator[Check]:
    """Yields whether the rescue topic keeps copies for longer than the topics that are read keep their records.

    A copy has the timestamp of its record, so with the same retention it would go when the record goes.
    """
    read = topics_of_run(adapters, _newest(adapters))
    try:
        policies = adapters.cluster.policies([topic, *read])
    except AcklineError as error:
        yield Check("rescue topic", True, f"{_WARNING}how long {topic} keeps copies could not be read: {error}")
        return
    own = policies.get(topic, TopicPolicy(None))
    longest = max((policy.retention for name in read if (policy := policies.get(name)) and policy.retention),
                  default=None)  # fmt: skip
    if own.compacted:
        text = f"{topic} is compacted (cleanup.policy): it keeps one copy of each key; set cleanup.policy to `delete`"
        yield Check("rescue topic", False, text)
    elif longest is not None and own.retention is not None and own.retention <= longest:
        text = (
            f"{topic} deletes a copy {duration_text(own.retention)} after the time of its record, and a topic that is "
            f"read keeps records for {duration_text(longest)}: the copy would go with them. Raise its retention.ms, "
            f"or set it to -1"
        )
        yield Check("rescue topic", False, text)
    else:
        kept = "for good" if own.retention is None else f"for {duration_text(own.retention)}"
        yield Check("rescue topic", True, f"{topic} keeps copies {kept}")


def _warnings(adapters: Adapters, topics: Iterable[str]) -> Iterator[Check]:
    """Yields the warnings about the settings. They fail no check."""
    found = list(adapters.setting_warnings)
    try:
        found += topic_warnings(adapters, topics)
    except AcklineError as error:
        found.append(f"retention and cleanup policy of the topics could not be read: {error}")
    for text in found:
        yield Check("settings", True, f"{_WARNING}{text}")


def _logs(adapters: Adapters) -> Iterator[Check]:
    """Yields what open transactions hold back, and a warning if retention takes records that are not settled within a
    day."""
    limit, partitions = adapters.now() + SOON, list[PartitionStatus]()
    if _newest(adapters) is not None:
        with suppress(AcklineError):  # why it can't be read, another check says
            partitions = status_and_missing(adapters)[0]
    yield from _open_transactions(adapters, partitions)
    near = [(each.retention_eta, each) for each in partitions if each.retention_eta and each.retention_eta <= limit]
    if not near:
        return
    at, first = min(near, key=lambda found: found[0])
    others = f", and of {counted(len(near) - 1, 'more partition')} within a day" if len(near) > 1 else ""
    yield Check(
        "retention", True,
        f"{_WARNING}retention may take offset {first.first_at_risk} of {first.topic}[{first.partition}], which is not "
        f"settled, from {at:%Y-%m-%d %H:%M:%S} UTC on{others}; raise retention.ms, or run more often: `ackline explain "
        f"{adapters.pipeline.name} {first.topic} {first.partition}` names what holds it",
    )  # fmt: skip


def _open_transactions(adapters: Adapters, partitions: Iterable[PartitionStatus]) -> Iterator[Check]:
    """Yields what open transactions hold back: a warning if one is open for longer than Kafka lets it be by default, or
    for a time that is not known."""
    now, held = adapters.now(), [each for each in partitions if each.open_transaction is not None]
    if not held:
        return
    since, first = min(((_open_since(each), each) for each in held), key=lambda found: found[0])
    others = f" So it is in {counted(len(held) - 1, 'more partition')}." if len(held) > 1 else ""
    hangs = _WARNING if since <= now - LONGEST_TRANSACTION else ""
    sentence = explanations_of(adapters, [first])[0].sentence
    yield Check("open transaction", True, f"{hangs}{sentence}{others}")


def _open_since(status: PartitionStatus) -> datetime:
    since = status.open_transaction.since if status.open_transaction is not None else None
    return since or datetime.min.replace(tzinfo=UTC)


COMMANDS = {"doctor": doctor}
