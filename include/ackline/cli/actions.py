"""`ackline retry | skip | reset | pause | resume | void | adopt-ledger`, and `ackline ack | fail | renew`.

The operator actions are made of the table `ackline.actions.form.ACTIONS`, and do what the DAG `operate__NAME` does. The
others produce answers for records in flight, by their tokens.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from ackline.actions.form import ACTIONS, LANE, REASON, Action
from ackline.actions.perform import entered_action
from ackline.cli import formats
from ackline.cli.options import DryRun, Json, Name, Now, Yes, is_confirmed, opened, show_preview, time_of, with_fields
from ackline.cli.several import AnyName, Choice, Every, Handler, Tag, act_on_several
from ackline.errors import ConfigError
from ackline.forms.arguments import is_lane
from ackline.forms.form import Entered
from ackline.in_flight.ack_topic import send_answer
from ackline.ledger.answers import parse_answer, parse_token
from ackline.pipeline.field_types import is_pipeline_name

_REQUIRED = replace(REASON, help=f"{REASON.help} Required, but for --dry-run.")
STDIN = "-"
_HELP = "What `record.token` was in the handler; `-` reads tokens from standard input."
Tokens = Annotated[list[str], typer.Argument(metavar="TOKEN...", help=_HELP, show_default=False)]
OneToken = Annotated[str, typer.Argument(metavar="TOKEN", help=_HELP, show_default=False)]


def commands() -> Iterator[tuple[str, Callable[..., None]]]:
    """Yields the commands of the operator actions, with their names."""
    for action in ACTIONS.values():
        takes_several = action.kind is not None and action.kind.pauses is not None
        fields = [_REQUIRED if field is REASON and action.needs_reason else field for field in action.fields]
        command = with_fields(fields, (_command_for_several if takes_several else _command)(action))
        command.__name__, command.__doc__ = action.name, action.help
        yield action.name, command


def _command(action: Action) -> Callable[..., None]:
    def command(
        values: Mapping[str, Any],
        name: Name,
        yes: Yes = False,
        dry_run: DryRun = False,
        now: Now = None,
        as_json: Json = False,
    ) -> None:
        at = time_of(now) or datetime.now(UTC)
        requested = entered_action(action, name, Entered(values, True), at, dry_run)
        # Without the handler: one that does not import may be why an operator acts.
        with opened(name, now, lane=values.get(LANE.name) or LANE.empty, handler=False) as adapters:
            shown = requested.preview(adapters)
            if dry_run or not yes:  # what is done without a question is shown once it is done
                show_preview(shown.text, yes, dry_run, as_json)
            if not is_confirmed(requested.question, yes, dry_run):
                formats.print_result(shown.body, "Nothing was changed.", as_json)
                return
            # A user at a terminal confirms what was shown, and no other turn; with --yes it may be a later turn.
            done = requested.perform(adapters, as_shown=not yes)
        formats.print_result(done.body, done.text if yes else done.brief or done.text, as_json)

    return command


def _command_for_several(action: Action) -> Callable[..., None]:
    on_one = _command(action)

    def command(
        values: Mapping[str, Any],
        name: AnyName = None,
        every: Every = False,
        tag: Tag = None,
        handler: Handler = None,
        yes: Yes = False,
        dry_run: DryRun = False,
        now: Now = None,
        as_json: Json = False,
    ) -> None:
        choice = Choice(every, tag, handler)
        if choice.is_given(name):
            act_on_several(action, choice, values, yes, dry_run, now, as_json)
        else:
            on_one(values, name, yes, dry_run, now, as_json)

    return command


def ack(tokens: Tokens, as_json: Json = False) -> None:
    """Ack records that are in flight, by their tokens. The next run of the pipeline settles them.

    The token names its pipeline. Only the first answer that ends an attempt counts, so it does no harm to ack twice.

    Other users of this machine see the arguments of a process. So pipe tokens in, one a line, and write `-`.

    Examples: `ackline ack - <done.txt`, `ackline ack WzEsIm9… --json`
    """
    _answer(tokens, "ack", as_json)


def fail(
    token: OneToken,
    reason: Annotated[str, typer.Option("--reason", help="Why, for readers of the audit table.")] = "",
    as_json: Json = False,
) -> None:
    """Fail a record that is in flight, by its token. The pipeline's retry policy applies, as after any failure.

    With `-`, each token on standard input gets the same answer.

    Examples: `ackline fail - <refused.txt --reason "the supplier refused it"`, `ackline fail WzEsIm9…`
    """
    _answer([token], f"fail {' '.join(reason.split())}".strip(), as_json)


def renew(
    token: OneToken,
    duration: Annotated[str, typer.Argument(metavar="DURATION", help="Such as 30s or 1h.", show_default=False)],
    as_json: Json = False,
) -> None:
    """Extend the deadline of a record in flight, by its token: DURATION after the run that reads the answer.

    With `-`, each token on standard input gets the same answer.

    Examples: `ackline renew - 10m <slow.txt`, `ackline renew WzEsIm9… 10m`
    """
    value = f"renew {duration}"
    if parse_answer(value) is None:
        raise ConfigError(f"{duration} is no duration above zero: write one such as 30s, 10m or 1h30m", key="DURATION")
    _answer([token], value, as_json)


def _answer(texts: Sequence[str], value: str, as_json: bool) -> None:
    """Sends an answer for each token of the command line, with those of standard input in place of `-`."""
    if STDIN in texts:
        piped = sys.stdin.read().split()
        if not piped:
            raise ConfigError("standard input holds no token: pipe in tokens, one a line", key="TOKEN")
        texts = [*(text for text in texts if text != STDIN), *piped]
    tokens = [token for text in texts if (token := parse_token(text.strip()))]
    # They are not verified yet: anyone can write one, and its names choose the files that are opened for the keys.
    sound = [token for token in tokens if is_pipeline_name(token.turn.pipeline) and is_lane(token.turn.lane)]
    if len(sound) < len(texts):
        raise ConfigError(
            "that is no token: give what `record.token` was in the handler, whole and in one piece", key="TOKEN"
        )
    of_turns = {(token.turn.pipeline, token.turn.lane) for token in tokens}
    if len(of_turns) > 1:
        raise ConfigError("the tokens are of several pipelines or lanes: answer for each one alone", key="TOKEN")
    name, lane = of_turns.pop()
    with opened(name, lane=lane, handler=False) as adapters:
        topic = send_answer(adapters, tokens, value)
    if as_json:
        formats.print_json({"pipeline": name, "lane": lane, "topic": topic, "answers": len(tokens)})
        return
    answers = "1 answer is" if len(tokens) == 1 else f"{len(tokens)} answers are"
    print(f"{answers} in {topic}; the next run of {name} reads {'it' if len(tokens) == 1 else 'them'}.")


COMMANDS = {**dict(commands()), "ack": ack, "fail": fail, "renew": renew}
