"""`ackline demo` and `ackline dev`: a tour of Ackline, and a real broker on this machine to try pipelines on."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from ackline.cli.options import DryRun, Yes, is_confirmed

app = typer.Typer(help="A local broker to try pipelines on.", no_args_is_help=True, pretty_exceptions_enable=False)


def demo(
    keep: Annotated[bool, typer.Option(help="Leave broker and Airflow running at the end.")] = False,
) -> None:
    """Run two pipelines on a broker, Spark and Airflow of their own: 22,000 orders until all are settled, then proofs.

    Examples: `ackline demo`, `ackline demo --keep` and afterwards `ackline dev down`
    """
    from ackline.local.demo import main

    sys.exit(main(keep))


@app.command()
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


@app.command()
def down() -> None:
    """Stop what `ackline dev up` or `ackline demo --keep` left running.

    Example: `ackline dev down`
    """
    from ackline.local.dev import dev_down

    print("Stopped." if dev_down() else "Nothing was running.")


@app.command()
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


@app.command()
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


@app.command()
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


@app.command()
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
