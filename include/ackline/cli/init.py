"""What a new user starts with: `ackline init` and `ackline adopt`, `ackline demo`, and `ackline dev`.

`init` and `adopt` write a pipeline file, a handler and its test, from a topic or a running group. Both look at Kafka
and change nothing in it. They write new files, and never overwrite one. `demo` is a tour of Ackline, and `dev` a real
broker on this machine to try pipelines on.
"""

import json
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from ackline.answers.survey import GroupSurvey, survey_group, survey_topic, topic_names
from ackline.cli import formats, tables
from ackline.cli.options import DryRun, Json, Yes, is_confirmed, refused
from ackline.errors import ConfigError, counted
from ackline.forms.connections import find_connection, variable_of
from ackline.forms.scaffold import Scaffold, name_for, text_of_handler, text_of_pipeline, text_of_test
from ackline.kafka.registry import without_registry_settings
from ackline.ledger.offsets import TopicPartition
from ackline.local.connection import dev_bootstrap
from ackline.pipeline.field_types import topic_name
from ackline.pipeline.folder import conflicts, handlers_folder, load_folder, pipelines_folder, project_root
from ackline.pipeline.pipeline import load
from ackline.pipeline.properties import broker_addresses, properties_of_connection, without_own_settings

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
    with refused("--topic"):
        survey = survey_topic(connection, topic_name(topic))
    pipeline = name or name_for(topic)
    scaffold = Scaffold(
        pipeline, (topic,), group or f"{pipeline}-replay", bootstrap_servers,
        _dead_letter_topic(connection, topic), survey.shape,
    )  # fmt: skip
    written = _write(scaffold)
    shape = survey.shape
    if as_json:
        found = {"kind": shape.kind.value, "records": shape.records, "nulls": shape.nulls}
        body = {"pipeline": pipeline, "topic": topic, "partitions": len(survey.logs), "offsets": survey.offsets}
        formats.print_json({**body, "shape": found, "files": [str(path) for path in written]})
        return
    nulls = f", {shape.nulls} of them without a value" if shape.nulls else ""
    values = f"the values of the first {counted(shape.records, 'record')}{nulls}: {shape.kind.value}"
    fields = f" with {len(shape.fields)} fields in common" if shape.fields else ""
    what = (values if shape.records else "no record") + fields
    print(
        f"Topic {survey.name}: {counted(len(survey.logs), 'partition')}, {counted(survey.offsets, 'offset')}; {what}."
    )
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
    partitions = [_partition_json(survey, tp) for tp in sorted(survey.logs)]
    if not as_json:
        rows = [
            [
                *(f"{part['topic']}[{part['partition']}]", f"[{part['log_start']}, {part['log_end']})"),
                *(part["committed"], part["start"], part["lag"], part["expired"] or None),
            ]
            for part in partitions
        ]
        columns = ["partition", "log", "committed", "starts at", "lag", "expired"]
        tables.print_table(tables.console(), f"Group {survey.group_id}", columns, rows)
        print(_consequences(survey))
    written = [] if dry_run else _write(scaffold)
    if as_json:
        about = {"group": survey.group_id, "members": list(survey.members), "committed_by": list(survey.committers)}
        body = {**about, "topics": list(survey.topics), "partitions": partitions, "pipeline": pipeline}
        formats.print_json({**body, "files": [str(path) for path in written]})
    elif written:
        _print_written(scaffold, written)


def _connection(bootstrap_servers: str | None) -> Mapping[str, Any]:
    if bootstrap_servers is not None:
        with refused("--bootstrap-servers"):
            return {"bootstrap.servers": broker_addresses(bootstrap_servers)}
    connection = find_connection(CONNECTION, "--bootstrap-servers")
    if connection is not None:
        return without_registry_settings(without_own_settings(properties_of_connection(CONNECTION, connection.extra)))
    if bootstrap := dev_bootstrap():
        return {"bootstrap.servers": bootstrap}
    raise ConfigError(
        f"no broker is known: give --bootstrap-servers HOST:PORT, set {variable_of(CONNECTION)}, or start a broker "
        f"with `ackline dev up`",
        key="--bootstrap-servers",
    )


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


def _print_written(scaffold: Scaffold, written: list[Path]) -> None:
    root = project_root()
    shown = [path.relative_to(root) if path.is_relative_to(root) else path for path in written]
    for path in shown:
        print(f"Wrote {path}")
    print(f"Next: pytest {shown[-2]}; ackline doctor {scaffold.name}; ackline plan {scaffold.name}")


def _consequences(survey: GroupSurvey) -> str:
    lag = sum(map(survey.lag, survey.logs))
    expired = sum(map(survey.expired, survey.logs))
    without = sum(tp not in survey.committed for tp in survey.logs)
    lines = [f"Its commits were made by {'; '.join(survey.committers)}."]
    if survey.members:
        lines.append(
            f"Stop its {counted(len(survey.members), 'live member')} first: {', '.join(survey.members)}. Kafka "
            f"takes no commit from outside while they live, and a run of the pipeline stops."
        )
    else:
        lines.append("It has no live members. Make sure that none starts again: Ackline stops if the group is moved.")
    lines.append(f"The pipeline goes on from the committed offsets, and has {counted(lag, 'offset')} to read.")
    lines.append("Records that a consumer has handled and not committed are handled again.")
    if without:
        lines.append(f"{without} of {len(survey.logs)} partitions have no commit; they are read from their log start.")
    if survey.open_transactions:
        lines.append(f"{counted(survey.open_transactions, 'offset')} more can't be read before open transactions end.")
    if expired:
        lines.append(
            f"Retention has taken {counted(expired, 'offset')} that no commit had passed; nothing can read them."
        )
    lines.append("Nothing was changed in Kafka.")
    return "\n".join(f"- {line}" for line in lines)


def _partition_json(survey: GroupSurvey, tp: TopicPartition) -> dict[str, Any]:
    log, committed = survey.logs[tp], survey.committed.get(tp)
    return {
        **tp._asdict(),
        "log_start": log.start,
        "log_end": log.end,
        "high_watermark": log.high_watermark,
        "committed": None if committed is None else committed.offset,
        "start": survey.start(tp),
        "lag": survey.lag(tp),
        "expired": survey.expired(tp),
    }


dev = typer.Typer(help="A local broker to try pipelines on.", no_args_is_help=True, pretty_exceptions_enable=False)


def demo(
    keep: Annotated[bool, typer.Option(help="Leave broker and Airflow running at the end.")] = False,
) -> None:
    """Run two pipelines on a broker, Spark and Airflow of their own: 22,000 orders until all are settled, then proofs.

    It needs an Airflow beside the package: `pip install 'ackline[airflow]'`.

    Examples: `ackline demo`, `ackline demo --keep` and afterwards `ackline dev down`
    """
    from ackline.local.demo import main

    sys.exit(main(keep))


@dev.command()
def up(
    port: Annotated[
        int | None, typer.Option(help="The broker's port. The default is a free port.", min=1, max=65535)
    ] = None,
) -> None:
    """Start a broker that stays up.

    A pipeline whose file has `connection: kafka_default` reads from it if `AIRFLOW_CONN_KAFKA_DEFAULT` is not set.

    Example: `ackline dev up --port 9092`
    """
    from ackline.local.dev import dev_up

    bootstrap = dev_up(port)
    print(f"A broker is up at {bootstrap}. Stop it with: ackline dev down")


@dev.command()
def spark(
    port: Annotated[
        int | None, typer.Option(help="The server's port. The default is a free port.", min=1, max=65535)
    ] = None,
) -> None:
    """Start a Spark Connect server that stays up, so that `ackline run` waits for no start of Spark.

    Commands use it while it runs, unless `ACKLINE_SPARK_MASTER` or the connection `spark_default` names a master.
    Changed handlers reach it by themselves; after a change of a Python package start it again.

    Example: `ackline dev spark`
    """
    from ackline.local.spark_server import dev_spark

    print(f"A Spark Connect server is up at {dev_spark(port)}. Stop it with: ackline dev down")


@dev.command()
def down() -> None:
    """Stop what `ackline dev up`, `ackline dev spark` or `ackline demo --keep` left running.

    Example: `ackline dev down`
    """
    from ackline.local.dev import dev_down

    print("Stopped." if dev_down() else "Nothing was running.")


@dev.command()
def status(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Print what is running. Exits with 1 if nothing is.

    Example: `ackline dev status`
    """
    from ackline.local.dev import dev_status

    found = dev_status()
    if as_json:
        print(json.dumps(found))
    elif found:
        for name, value in found.items():
            print(f"{name}: {value}")
    else:
        print("Nothing is running.")
    sys.exit(0 if found else 1)


@dev.command()
def produce(
    topic: Annotated[
        str, typer.Argument(help="The topic. It is created with 4 partitions if it does not exist.")
    ] = "orders",
    count: Annotated[int, typer.Option(help="How many orders.", min=1)] = 1000,
    file: Annotated[
        Path | None, typer.Option(help="Produce the records of this file instead, one JSON value on each line.")
    ] = None,
) -> None:
    """Produce orders, or the records of a file, to the local broker. Also creates TOPIC.dead if it does not exist.

    A line of the file is the value of a record, or an object with `value`, `key`, `headers` and `partition`.

    Examples: `ackline dev produce orders --count 5000`, `ackline dev produce payments --file payments.jsonl`
    """
    from ackline.local.dev import dev_produce, dev_produce_file

    print(dev_produce_file(topic, file) if file is not None else dev_produce(topic, count))


@dev.command()
def consume(
    topic: Annotated[str, typer.Argument(help="The topic.")],
    limit: Annotated[int | None, typer.Option(help="At most this many records.", min=1)] = None,
) -> None:
    """Print the records of a topic of the local broker, one JSON object on each line, values included.

    It reads from the start of the log to its present end, joins no group and commits nothing.

    Example: `ackline dev consume orders.dead --limit 5`
    """
    from ackline.local.dev import dev_consume

    for record in dev_consume(topic, limit):
        print(json.dumps(record))


@dev.command()
def wipe(yes: Yes = False, dry_run: DryRun = False) -> None:
    """Stop the broker of `ackline dev up`, and remove it with all its topics. Asks first.

    The tables of the pipelines stay. A pipeline that has read a topic of this broker needs `ackline reset`, or an empty
    folder of tables, before it reads a new topic of the same name.

    Example: `ackline dev wipe --yes`
    """
    from ackline.local.connection import dev_folder
    from ackline.local.dev import dev_wipe

    print(f"{dev_folder()}: the broker of `ackline dev up`, with all its topics and committed offsets.")
    if not is_confirmed("Remove it?", yes, dry_run):
        print("Nothing was changed.")
    else:
        print("Removed." if dev_wipe() else "There was none.")


COMMANDS = {"init": init, "adopt": adopt, "demo": demo, "dev": dev}
