"""`ackline init` and `ackline adopt`: a pipeline file, a handler and its test, from a topic or a running group.

Both look at Kafka and change nothing in it. They write new files, and never overwrite one.
"""

import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from ackline.actions.survey import GroupSurvey, TopicSurvey, survey_group, survey_topic, topic_names
from ackline.cli import formats, tables
from ackline.cli.options import Json
from ackline.errors import ConfigError
from ackline.local.connection import dev_bootstrap
from ackline.pipeline.field_types import topic_name
from ackline.pipeline.folder import conflicts, handlers_folder, load_folder, pipelines_folder, project_root
from ackline.pipeline.pipeline import load
from ackline.pipeline.properties import broker_addresses
from ackline.pipeline.scaffold import Scaffold, name_for, text_of_handler, text_of_pipeline, text_of_test
from ackline.pipeline.secrets import connection_from_environment, variable_of

Broker = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-servers", help="HOST:PORT of the brokers. The default is the connection `kafka_default`."
    ),
]
PipelineName = Annotated[str | None, typer.Option("--name", help="The name of the pipeline.", show_default=False)]
CONNECTION = "kafka_default"


def init(
    bootstrap_servers: Broker = None,
    topic: Annotated[str | None, typer.Option(help="The topic to read.", show_default=False)] = None,
    group: Annotated[str | None, typer.Option(help="The consumer group. The default is NAME-replay.")] = None,
    name: PipelineName = None,
    as_json: Json = False,
) -> None:
    """Write a pipeline file, a handler and its test from a topic. Overwrites nothing, and changes nothing in Kafka.

    It reads the first 100 records to find the shape of their values, and prints no value.

    Example: `ackline init --bootstrap-servers 127.0.0.1:9092 --topic orders`
    """
    connection = _connection(bootstrap_servers)
    if topic is None:
        names = ", ".join(topic_names(connection)[:20]) or "none"
        raise ConfigError(f"--topic is missing: name the topic to read. The broker has: {names}", key="--topic")
    survey = survey_topic(connection, _checked_topic(topic))
    pipeline = name or name_for(topic)
    scaffold = Scaffold(
        pipeline, (topic,), group or f"{pipeline}-replay", bootstrap_servers,
        _dead_letter_topic(connection, topic), survey.shape,
    )  # fmt: skip
    written = _write(scaffold)
    if as_json:
        shape = {"kind": survey.shape.kind.value, "records": survey.shape.records, "nulls": survey.shape.nulls}
        body = {"pipeline": pipeline, "topic": topic, "partitions": len(survey.logs), "offsets": survey.offsets}
        formats.print_json({**body, "shape": shape, "files": [str(path) for path in written]})
        return
    print(_topic_text(survey))
    _print_written(scaffold, written)


def adopt(
    group: Annotated[str, typer.Argument(help="The consumer group to take over.")],
    bootstrap_servers: Broker = None,
    name: PipelineName = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what it would mean; write no file.")] = False,
    as_json: Json = False,
) -> None:
    """Show what taking over a consumer group means, and write the pipeline file for it. Changes nothing in Kafka.

    It shows lag, members and committed offsets of each partition. The pipeline goes on from the committed offsets. It
    overwrites no file.

    Example: `ackline adopt orders-app --bootstrap-servers 127.0.0.1:9092`
    """
    connection = _connection(bootstrap_servers)
    survey = survey_group(connection, group)
    pipeline = name or name_for(group)
    topic = survey.topics[0]
    shape = survey_topic(connection, topic).shape
    dead = _dead_letter_topic(connection, topic)
    scaffold = Scaffold(pipeline, survey.topics, group, bootstrap_servers, dead, shape, adopted=True)
    if not as_json:
        _print_group(survey)
        print(_consequences(survey))
    written = [] if dry_run else _write(scaffold)
    if as_json:
        formats.print_json({**_group_json(survey), "pipeline": pipeline, "files": [str(path) for path in written]})
    elif written:
        _print_written(scaffold, written)


def _connection(bootstrap_servers: str | None) -> Mapping[str, Any]:
    if bootstrap_servers is not None:
        try:
            return {"bootstrap.servers": broker_addresses(bootstrap_servers)}
        except ValueError as error:
            raise ConfigError(f"--bootstrap-servers: {error}", key="--bootstrap-servers") from None
    connection = connection_from_environment(CONNECTION, "--bootstrap-servers")
    if connection is not None:
        return connection.extra
    if bootstrap := dev_bootstrap():
        return {"bootstrap.servers": bootstrap}
    raise ConfigError(
        f"no broker is known: give --bootstrap-servers HOST:PORT, set {variable_of(CONNECTION)}, or start a broker "
        f"with `ackline dev up`",
        key="--bootstrap-servers",
    )


def _checked_topic(topic: str) -> str:
    try:
        return topic_name(topic)
    except ValueError as error:
        raise ConfigError(f"--topic: {error}", key="--topic") from None


def _dead_letter_topic(connection: Mapping[str, Any], topic: str) -> str | None:
    """Returns the topic for dead letters, if it exists: no file may name one that a run would miss."""
    names = topic_names(connection)
    return next((name for name in (f"{topic}.dead", f"{topic}.dlq", f"{topic}-dlq") if name in names), None)


def _write(scaffold: Scaffold) -> list[Path]:
    """Writes the three files, and returns their paths. Raises ConfigError, and writes none, if one exists or if the
    pipeline file would be refused beside the others."""
    pipeline = pipelines_folder() / f"{scaffold.name}.yaml"
    include = handlers_folder()
    texts = {
        include / "handlers" / f"{scaffold.module}.py": text_of_handler(scaffold),
        include.parent / "tests" / f"test_{scaffold.module}.py": text_of_test(scaffold),
        # The pipeline file comes last: once it is there, Airflow makes a DAG of it.
        pipeline: text_of_pipeline(scaffold),
    }
    # Without this file, another package `handlers` on Python's path would hide the folder.
    package = include / "handlers" / "__init__.py"
    texts = texts if package.exists() else {package: "", **texts}
    for path in texts:
        if path.exists():
            raise ConfigError(f"{path} exists, and is not overwritten; choose another --name, or remove it", file=path)
    _check_valid(pipeline, texts[pipeline])
    written: list[Path] = []
    try:
        for path, text in texts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("x", encoding="utf-8") as file:  # refused if it has come into being since the check
                written.append(path)
                file.write(text)
    except OSError as error:
        for path in written:
            with suppress(OSError):
                path.unlink()
        raise ConfigError(f"{error.filename}: can't be written ({error.strerror}); nothing was written") from None
    return written


def _check_valid(target: Path, text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / target.name
        path.write_text(text, encoding="utf-8")
        try:
            pipeline = load(path)
        except ConfigError as error:
            raise ConfigError(str(error).replace(str(path), "the new pipeline file"), key=error.key) from None
    others = load_folder(pipelines_folder()).pipelines if pipelines_folder().is_dir() else {}
    together = {Path(name): other for name, other in others.items()} | {target: pipeline}
    for conflict in conflicts(together):
        if conflict.path == target:
            raise ConfigError(f"{conflict.key}: {conflict.reason}; choose another one", key=conflict.key)


def _topic_text(survey: TopicSurvey) -> str:
    shape = survey.shape
    nulls = f", {shape.nulls} of them without a value" if shape.nulls else ""
    what = (
        f"the values of the first {shape.records} records{nulls}: {shape.kind.value}" if shape.records else "no record"
    )
    fields = f" with {len(shape.fields)} fields in common" if shape.fields else ""
    return f"Topic {survey.name}: {len(survey.logs)} partitions, {survey.offsets:,} offsets; {what}{fields}."


def _print_written(scaffold: Scaffold, written: list[Path]) -> None:
    for path in written:
        with suppress(ValueError):
            path = path.relative_to(project_root())
        print(f"Wrote {path}")
    print(f"Next: pytest {_relative(written[-2])}; ackline doctor {scaffold.name}; ackline plan {scaffold.name}")


def _relative(path: Path) -> Path:
    return path.relative_to(project_root()) if path.is_relative_to(project_root()) else path


def _print_group(survey: GroupSurvey) -> None:
    rows = [
        [
            str(tp),
            f"[{log.start}, {log.end})",
            survey.committed[tp].offset if tp in survey.committed else None,
            survey.start(tp),
            survey.lag(tp),
            survey.expired(tp) or None,
        ]
        for tp, log in sorted(survey.logs.items())
    ]
    columns = ["partition", "log", "committed", "starts at", "lag", "expired"]
    tables.print_table(tables.console(), f"Group {survey.group_id}", columns, rows)


def _consequences(survey: GroupSurvey) -> str:
    lag = sum(map(survey.lag, survey.logs))
    expired = sum(map(survey.expired, survey.logs))
    without = sum(tp not in survey.committed for tp in survey.logs)
    lines = [f"Its commits were made by {'; '.join(survey.committers)}."]
    if survey.members:
        lines.append(
            f"Stop its {len(survey.members)} live members first: {', '.join(survey.members)}. Kafka takes no commit "
            f"from outside while they live, and a run of the pipeline stops."
        )
    else:
        lines.append("It has no live members. Make sure that none starts again: Ackline stops if the group is moved.")
    lines.append(f"The pipeline goes on from the committed offsets, and has {lag:,} offsets to read.")
    lines.append("Records that a consumer has handled and not committed are handled again.")
    if without:
        lines.append(f"{without} of {len(survey.logs)} partitions have no commit; they are read from their log start.")
    if expired:
        lines.append(f"Retention has taken {expired:,} offsets that were not committed; nothing can read them.")
    lines.append("Nothing was changed in Kafka.")
    return "\n".join(f"- {line}" for line in lines)


def _group_json(survey: GroupSurvey) -> dict[str, Any]:
    partitions = [
        {
            "topic": tp.topic,
            "partition": tp.partition,
            "log_start": log.start,
            "log_end": log.end,
            "committed": survey.committed[tp].offset if tp in survey.committed else None,
            "start": survey.start(tp),
            "lag": survey.lag(tp),
            "expired": survey.expired(tp),
        }
        for tp, log in sorted(survey.logs.items())
    ]
    return {"group": survey.group_id, "members": list(survey.members), "committed_by": list(survey.committers),
            "topics": list(survey.topics), "partitions": partitions}  # fmt: skip
