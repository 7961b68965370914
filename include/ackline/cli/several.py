"""`ackline pause | resume` for several pipelines: which ones are chosen, and the action on one after the other.

A pipeline that fails is named, and the others go on. The dry run, the question and `--yes` are those of a single one.
"""

import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from ackline.actions.form import Action
from ackline.actions.perform import OperatorAction, Report, entered_action
from ackline.actions.report import ActionObject
from ackline.cli import formats
from ackline.cli.options import is_confirmed, opened, show_preview, time_of
from ackline.errors import AcklineError, ConfigError, counted, did_you_mean
from ackline.forms.form import Entered
from ackline.lane.adapters import Adapters
from ackline.ledger.turns import PauseAct
from ackline.pipeline.folder import check_folder, load_folder, make_handlers_importable, pipelines_folder
from ackline.pipeline.pipeline import Pipeline

AnyName = Annotated[
    str | None, typer.Argument(help="The pipeline: the `name` in its file. Or choose several.", show_default=False)
]
Every = Annotated[bool, typer.Option("--all", help="All pipelines of the folder.")]
Tag = Annotated[str | None, typer.Option("--tag", help="All pipelines that have this word in `tags` of their file.")]
Handler = Annotated[
    str | None,
    typer.Option("--handler", metavar="MODULE[:NAME]", help="All pipelines with this handler, or one of this module."),
]


@dataclass(frozen=True, slots=True)
class Choice:
    """The options that choose several pipelines, as they were given."""

    every: bool = False
    tag: str | None = None
    handler: str | None = None

    def is_given(self, name: str | None) -> bool:
        """Returns whether several pipelines are chosen, and not the one `name`. Raises ConfigError unless exactly one
        of the name and the options is given."""
        given = [name is not None, self.every, self.tag is not None, self.handler is not None]
        if sum(given) != 1:
            what = "several of them are given" if any(given) else "nothing is chosen"
            raise ConfigError(f"give one of NAME, --all, --tag and --handler: {what}. Nothing was changed", key="NAME")
        return name is None

    def includes(self, pipeline: Pipeline) -> bool:
        """Returns whether a pipeline is chosen."""
        if self.handler is not None:
            return pipeline.has_handler(self.handler)
        return self.every or self.tag in pipeline.tags


def chosen_pipelines(choice: Choice) -> tuple[dict[str, Pipeline], dict[str, AcklineError]]:
    """Returns the chosen pipelines by name, sorted, and the errors of files that are refused, by the file's name: what
    these would choose is not known. Raises ConfigError if no pipeline is chosen."""
    folder = pipelines_folder()
    check_folder(folder)
    loaded = load_folder(folder)
    chosen = {name: pipeline for name, pipeline in sorted(loaded.pipelines.items()) if choice.includes(pipeline)}
    if not chosen:
        every = loaded.pipelines.values()
        if choice.handler is not None:
            near = did_you_mean(choice.handler, (path for pipeline in every for path in pipeline.handlers))
            raise ConfigError(f"--handler {choice.handler}: no pipeline in {folder} has it{near}", key="--handler")
        if choice.tag is not None:
            near = did_you_mean(choice.tag, (tag for pipeline in every for tag in pipeline.tags))
            raise ConfigError(f"--tag {choice.tag}: no pipeline in {folder} has it{near}", key="--tag")
        raise ConfigError(f"--all: there is no valid pipeline file in {folder}", key="--all")
    return chosen, {path.name: error for path, error in loaded.broken.items()}


def act_on_several(
    action: Action, choice: Choice, values: Mapping[str, Any], yes: bool, dry_run: bool, now: str | None, as_json: bool
) -> None:
    """Does an action on each chosen pipeline, or shows what it would do. Exits with 1 if one of them fails."""
    pipelines, failed = chosen_pipelines(choice)
    make_handlers_importable()
    at = time_of(now) or datetime.now(UTC)
    left = _left_paused(pipelines, now) if action.name == "resume" else {}
    entered = Entered(values, True)
    requested = {name: entered_action(action, name, entered, at) for name in pipelines if name not in left}

    def on_each(work: Callable[[OperatorAction, Adapters], ActionObject]) -> dict[str, ActionObject]:
        bodies = {}
        for name in [name for name in requested if name not in failed]:
            try:
                with opened(name, now, handler=False, pipeline=pipelines[name]) as adapters:
                    bodies[name] = work(requested[name], adapters)
            except AcklineError as error:
                failed[name] = error
        return bodies

    def change(one: OperatorAction, adapters: Adapters) -> ActionObject:
        body = found.get(adapters.pipeline.name) or _body(one.preview(adapters))
        # A pause of what is paused already would hide why and by whom it was paused first.
        if not _changed(body):
            return body.model_copy(update={"dry_run": False})
        return _body(one.perform(adapters, as_shown=not yes))

    found: dict[str, ActionObject] = {}
    if dry_run or not yes:
        found = on_each(lambda one, adapters: _body(one.preview(adapters)))
        lines = [_line(name, action, body) for name, body in found.items()]
        lines += _left_lines(left)
        lines += [f"{name}: not possible: {error}" for name, error in failed.items()]
        show_preview("\n".join(lines), yes, dry_run, as_json)
    question = f"{action.name.capitalize()} {counted(len(found), 'pipeline')}?"
    confirmed = bool(found or yes) and is_confirmed(question, yes, dry_run)
    if confirmed:
        found = on_each(change)
    if as_json:
        errors = [{"pipeline": name, "error": str(one), "kind": one.kind} for name, one in failed.items()]
        kept = [{"pipeline": name, **act._asdict(), "at": act.at.isoformat()} for name, act in left.items()]
        bodies = [body.dump() for body in found.values()]
        formats.print_json({"pipelines": bodies, "left_paused": kept, "failed": errors})
    elif confirmed:
        print("\n".join([*(_line(name, action, body) for name, body in found.items()), *_left_lines(left)]))
        for name, error in failed.items():
            print(f"ackline: {name}: not {action.name}d: {error}", file=sys.stderr)
    else:
        print("Nothing was changed.")
    if failed:
        raise typer.Exit(1)


def _left_paused(pipelines: Mapping[str, Pipeline], now: str | None) -> dict[str, PauseAct]:
    """Returns the pipelines that a resume of several leaves alone, each with the first pause that keeps it: those with
    a partition that is paused for another reason than the last `ackline pause` of any of them, resumed or not. So a
    pause for the weekend, or by `ackline void --pause`, outlives the end of an incident, also if the resume is
    repeated."""
    pauses, held = list[PauseAct](), dict[str, list[PauseAct]]()
    for name, pipeline in pipelines.items():
        with suppress(AcklineError), opened(name, now, handler=False, pipeline=pipeline) as adapters:
            newest, last = adapters.store.newest(), adapters.store.last_pause()
            pauses += [last] if last is not None else []
            paused = {tp for tp, row in newest.partitions.items() if row.paused} if newest is not None else set()
            held[name] = sorted({act for tp, act in adapters.store.pauses().items() if tp in paused}) if paused else []
    reason = max(pauses).reason if pauses else None
    others = {name: [act for act in acts if act.reason != reason] for name, acts in held.items()}
    return {name: acts[0] for name, acts in others.items() if acts}


def _left_lines(left: Mapping[str, PauseAct]) -> list[str]:
    return [f"{name}: left paused, {act}; `ackline resume {name}` resumes it" for name, act in left.items()]


def _body(report: Report) -> ActionObject:
    assert isinstance(report.body, ActionObject)
    return report.body


def _changed(body: ActionObject) -> int:
    return sum(change.paused.before is not change.paused.after for change in body.partitions)


def _line(name: str, action: Action, body: ActionObject) -> str:
    """Returns what an action changes of a pipeline, or has changed, on a line."""
    changed = _changed(body)
    same = len(body.partitions) - changed
    done = "would be " * body.dry_run + f"{action.name}d"
    text = f"{name}: {counted(changed, 'partition')} {done}" + f", {same} {action.name}d already" * bool(same)
    return text if body.not_committed is None else f"{text}. It is stored; {body.not_committed}"
