"""The command `python -m ackline.verify`: parses the arguments, and prints the report as text or as JSON."""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from ackline.verify.check import Report, Sources, check
from ackline.verify.evidence import Unreadable

LEVELS = ("read_committed", "read_uncommitted")


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the arguments; without `argv` those of the process. Exits with status 2 if they are wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m ackline.verify",
        description="Judge a pipeline of Ackline by its topics, its tables and its committed offsets.",
        epilog="Exit status: 0: every invariant holds; 1: there are violations; 2: the evidence cannot be read.",
    )
    parser.add_argument("--bootstrap", required=True, help="address of the Kafka brokers, HOST:PORT")
    parser.add_argument("--audit", required=True, help="root of the Delta tables")
    parser.add_argument("--pipeline", required=True, help="name of the pipeline")
    parser.add_argument("--group", required=True, help="consumer group of the pipeline")
    parser.add_argument("--topic", action="append", required=True, help="a topic of the pipeline; can be repeated")
    letters = parser.add_mutually_exclusive_group(required=True)
    letters.add_argument("--dead-letter-topic", help="topic of the dead letters")
    letters.add_argument("--no-dead-letters", action="store_true", help="the pipeline has `dead_letter: none`")
    parser.add_argument("--isolation", default=LEVELS[0], choices=LEVELS, help="the pipeline's `kafka.isolation`")
    parser.add_argument("--journal", help="file of handler calls, one a line")
    retries = "the limit of retries, or forever; without it, the number of attempts is not judged"
    parser.add_argument("--max-retries", type=parse_retries, help=retries)
    parser.add_argument("--lane", default="live", help="lane to judge")
    parser.add_argument("--settled", action="store_true", help="nothing may be open, pending or behind the log's end")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    return parser.parse_args(argv)


def parse_retries(text: str) -> int:
    """Return the limit that a pipeline file's `max_retries` means; `forever` is the most that the tables can count."""
    return 2**31 - 2 if text == "forever" else int(text)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the report; return 0 if every invariant holds, 1 if not, 2 if the evidence cannot be read."""
    args = parse_arguments(argv)
    sources = Sources(
        args.bootstrap,
        args.audit,
        args.pipeline,
        args.group,
        args.topic,
        dead_letter_topic=args.dead_letter_topic,
        isolation=args.isolation,
        journal=args.journal,
        lane=args.lane,
    )
    try:
        report = check(sources, max_retries=args.max_retries, settled=args.settled)
    except Unreadable as error:
        print(f"cannot judge: {error}", file=sys.stderr)
        return 2
    print(json.dumps({"ok": report.ok, **asdict(report)}) if args.json else format_report(report))
    return 0 if report.ok else 1


def format_report(report: Report) -> str:
    """Return the report as text: a line of counts for each topic and for all, then a line for each violation, and for
    each thing that was not judged."""
    lines = [
        f"{name}: " + ", ".join(f"{count:,} {word}" for word, count in counts.items() if count)
        for name, counts in {**report.topics, "all": report.totals}.items()
    ]
    not_judged = [f"not judged: {what}" for what in report.not_judged]
    return "\n".join([*lines, *(report.violations or ["every invariant holds"]), *not_judged])


if __name__ == "__main__":
    sys.exit(main())
