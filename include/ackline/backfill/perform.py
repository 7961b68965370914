"""How a backfill is begun or resumed: the command and the DAG `backfill__NAME` do these steps, each with its own
confirmation between `prepare` and `begin_prepared`."""

from dataclasses import dataclass

from ackline.backfill.choose import Choice, choose_offsets
from ackline.backfill.form import BackfillRequest
from ackline.backfill.report import PreparedObject, account_text, choice_text, prepared_object
from ackline.backfill.run import (
    Backfill,
    account_of_choice,
    begin,
    check_epoch_before_is_settled,
    find_backfill,
)
from ackline.errors import ConfigError
from ackline.lane.adapters import Adapters
from ackline.ledger.account import Account
from ackline.pipeline.arguments import BackfillArguments, check_same


@dataclass(frozen=True, slots=True)
class PreparedBackfill:
    """A lane that has begun the epoch that is wanted, or what a new lane or epoch would read."""

    request: BackfillRequest
    epoch: int
    account: Account
    stored: Backfill | None
    choice: Choice | None
    text: str
    """What it is, or would be, for a person."""

    def body(self, dry_run: bool) -> PreparedObject:
        """Returns it as an object."""
        return prepared_object(self.request.lane, self.epoch, self.account, self.choice, dry_run)


def lane_arguments(name: str, request: BackfillRequest, stored: Backfill | None) -> BackfillArguments:
    """Returns the arguments of the lane, or those of the request for a new one; `name` is the pipeline's.

    Raises ConfigError where the two differ, for an id alone that no lane has, and for arguments that choose nothing.
    """
    if stored is not None:
        if request.arguments.given:
            check_same(request.id, stored.arguments, request.arguments)
        return stored.arguments
    if request.has_id and not request.arguments.given:
        raise ConfigError(
            f"{request.id_label} {request.id}: {name} has no such backfill; `ackline backfill {name} --list` lists "
            f"them. Give ranges, from, outcome or all to begin it",
            key=request.id_label,
        )
    request.arguments.check()
    return request.arguments


def prepare(adapters: Adapters, request: BackfillRequest, arguments: BackfillArguments) -> PreparedBackfill:
    """Returns the lane as it is, or what it would begin with. Stores nothing.

    Raises FatalError for an epoch whose predecessor is not settled.
    """
    name, stored = adapters.pipeline.name, find_backfill(adapters.store)
    if stored is not None and request.epoch <= stored.newest.turn.epoch:
        text = account_text(name, request.lane, stored.account, adapters.now())
        return PreparedBackfill(request, stored.newest.turn.epoch, stored.account, stored, None, text)
    check_epoch_before_is_settled(adapters.store, request.epoch)
    choice = choose_offsets(adapters, arguments)
    text = choice_text(name, request.id, choice, adapters.pipeline.backfill.confirm_above)
    return PreparedBackfill(request, request.epoch, account_of_choice(choice), None, choice, text)


def begin_prepared(adapters: Adapters, prepared: PreparedBackfill, arguments: BackfillArguments) -> None:
    """Stores the genesis of what was prepared. Raises ConfigError if another process has begun the same id meanwhile
    with other arguments: its choice stands."""
    assert prepared.choice is not None
    request = prepared.request
    genesis = begin(adapters, arguments, prepared.choice, request.reason, request.epoch)
    check_same(request.id, BackfillArguments.decode(genesis.arguments), arguments)
