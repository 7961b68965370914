"""`ackline dev`: a real broker on this machine, to try pipelines on."""

import json
import sys
from typing import Annotated

import typer

app = typer.Typer(help="A local broker to try pipelines on.", no_args_is_help=True, pretty_exceptions_enable=False)


@app.command()
def up(
    port: Annotated[
        int | None, typer.Option(help="The broker's port. The default is a free port.", min=1, max=65535)
    ] = None,
) -> None:
    """Start a broker that stays up.

    A pipeline reads from it if its file names no bootstrap servers and AIRFLOW_CONN_<ID> of its connection is not set.

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
) -> None:
    """Produce orders to the local broker, some of which fail. Also creates TOPIC.dead if it does not exist.

    Example: `ackline dev produce orders --count 5000`
    """
    from ackline.local.dev import dev_produce

    print(dev_produce(topic, count))
