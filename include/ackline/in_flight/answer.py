"""Answer for records in flight, by their tokens: what `ackline ack`, `fail` and `renew` do."""

from collections.abc import Sequence

from ackline.errors import ConfigError
from ackline.in_flight.ack_topic import checked_topic
from ackline.lane.adapters import Adapters
from ackline.ledger.tokens import Token


def send_answer(adapters: Adapters, tokens: Sequence[Token], value: str) -> str:
    """Sends the same answer for each token. Returns the ack topic that has them now.

    The next run applies them. Whether an attempt is still in flight is not checked: a token may come before its outcome
    is stored. Raises ConfigError if the pipeline has no ack topic, if that does not exist or is not the one that the
    lane reads, or if no key of the connection has signed a token; and what sending raises.
    """
    topic = adapters.pipeline.ack_topic
    if topic is None:
        raise ConfigError(
            f"{adapters.pipeline.name} has no `ack_topic` in its file any more, so no answer would be read; add the "
            "key",
            key="ack_topic",
        )
    for token in tokens:
        _check_signed(adapters, token)
    _check_read(adapters, topic)
    checked_topic(adapters, topic)
    adapters.send_answers(topic, [(token.text, value) for token in tokens])
    return topic


def _check_read(adapters: Adapters, topic: str) -> None:
    newest, plan = adapters.newest_and_open_plan()
    position = newest.answers.position if newest is not None and newest.answers is not None else None
    if plan is not None and plan.ack_position is not None:
        position = plan.ack_position  # the newest settlement may be of the topic before
    if position is not None and position.topic != topic:
        raise ConfigError(
            f"{adapters.pipeline.name} reads its answers in {position.topic}, but `ack_topic` in its file is {topic} "
            f"now: put {position.topic} back until nothing is in flight, and answer again. Nothing was sent",
            key="ack_topic",
        )


def _check_signed(adapters: Adapters, token: Token) -> None:
    newest = adapters.store.newest()
    settled = newest.partitions.get(token.tp) if newest is not None else None
    if settled is None or not token.is_signed(adapters.token_keys or (), adapters.store.ledger_id(), settled.topic_id):
        raise ConfigError(
            f"the token is not one of {adapters.pipeline.name} as it is here: its key was removed from the connection, "
            f"its topic was created again, or it is of another ledger (ACKLINE_AUDIT). Nothing was sent; `ackline "
            f"status {adapters.pipeline.name}` shows what is in flight",
            key="TOKEN",
        )
