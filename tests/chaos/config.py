"""The pipeline file of one world; each world draws its own."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from hypothesis import strategies as st

from ackline.ledger.backoff import parse_duration
from tests.chaos.account import Policy, Rules
from tests.chaos.outside import ACKS, TIMEOUT

GROUP, DEAD, NAME = "orders-replay", "orders.dead", "lane"
TOPICS = ("orders", "payments", "refunds")
"""The topics that are read. The last one may be created later."""
GUARANTEES = ("at_least_once", "at_most_once", "no_guarantee")
LOST_AFTER = "5m"
OF_A_LOST_LEDGER = '{"ledger": "lost", "pipeline": "lane", "epoch": 0, "n": 9}'
"""The metadata of a commit of this pipeline by another ledger."""


@dataclass(frozen=True, slots=True)
class Config:
    """The settings of one world, its first records, and what the group has committed before the first run."""

    partitions: int = 1
    first_records: int = 0
    commit_before: str | None = None
    """The metadata of the commit before the first run; None: there is none."""
    start: str = "earliest"
    isolation: str = "read_committed"
    guarantee: str = "at_least_once"
    on_external_reset: str = "fail"
    retries: int = 0
    delays: tuple[str, str] = ("0s", "1s")
    jitter: float = 0.0
    by_error: bool = False
    buried: bool = True
    tombstones: str = "skip"
    window: int = 5
    most: int = 5
    breaker: tuple[float, int] | None = None
    behind: tuple[int, str] | None = None
    pattern: bool = False
    returns: bool = True
    """Whether the file names all topics again at the end."""
    order: str = "none"
    waits: int = 0
    """`in_flight.max` of a file with an ack topic; 0: without one."""
    restores: bool = False
    """Whether parts of the world are set back to older copies. It is in half of the worlds, because it ends processes,
    and so hides what a late one may break."""

    @property
    def has_answers(self) -> bool:
        return self.waits > 0

    def settings(self) -> dict[str, Any]:
        """Returns the file without its topics."""
        initial, period = self.delays
        delays = {"initial_delay": initial, "period": period, "max_delay": "5m"}
        retry: dict[str, Any] = {**delays, "max_retries": self.retries, "jitter": self.jitter}
        if self.by_error:
            retry["by_error"] = {"KeyError": "never", "TimeoutError": {"max_retries": 1, "period": "2m"}}
        settings: dict[str, Any] = {
            "name": NAME,
            "handler": "handlers:scripted",
            "guarantee": self.guarantee,
            "lost_after": LOST_AFTER,
            "on_external_reset": self.on_external_reset,
            "start": self.start,
            "missing_topics": "wait",
            "max_uncommitted": self.window,
            "max_records_per_run": self.most,
            "retry": retry,
            "dead_letter": {"topic": DEAD} if self.buried else "none",
            "tombstones": self.tombstones,
            "kafka": {"bootstrap_servers": "memory:1", "group_id": GROUP, "isolation": self.isolation},
        }
        if self.breaker is not None:
            settings["breaker"] = {"failure_ratio": self.breaker[0], "min_records": self.breaker[1]}
        if self.behind is not None:
            settings["max_offset_behind"] = {"offsets": self.behind[0], "policy": self.behind[1]}
        if self.has_answers:
            settings |= {"ack_topic": ACKS, "in_flight": {"timeout": TIMEOUT, "max": self.waits}}
        if self.order != "none":
            settings |= {"order": self.order, "audit": {"key_hash": True}}
        if self.has_answers or self.order != "none":
            settings["kafka"] = {"connection": "memory", "group_id": GROUP, "isolation": self.isolation}
        return settings

    def rules(self) -> Rules:
        initial, period, most = (parse_duration(text) for text in (*self.delays, "5m"))
        policy = Policy(self.retries, initial, period, most, self.jitter)
        by_error: dict[str, Policy | None] = {}
        if self.by_error:
            patient = policy._replace(max_retries=1, period=timedelta(minutes=2))
            by_error = {"KeyError": None, "TimeoutError": patient}
        dead, lost_after = DEAD if self.buried else None, parse_duration(LOST_AFTER)
        return Rules(
            GROUP, NAME, self.isolation, self.on_external_reset, policy, by_error, dead, lost_after, self.breaker
        )


_GUARANTEES = st.sampled_from(["at_least_once"] * 3 + ["at_most_once"] * 2 + ["no_guarantee"])
_NO_ANSWERS, _NO_ORDER = st.just(0), st.just("none")


def _often(usual: Any, *others: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from([usual] * max(len(others), 1) + list(others))


def answered_configs() -> st.SearchStrategy[Config]:
    return configs(st.just("at_least_once"), st.sampled_from([2, 5, 50]))


def ordered_configs() -> st.SearchStrategy[Config]:
    guarantees = st.sampled_from(["at_least_once"] * 5 + ["at_most_once"])
    return configs(guarantees, _NO_ANSWERS, st.sampled_from(["key", "key", "partition"]))


def configs(
    guarantees: st.SearchStrategy[str] = _GUARANTEES,
    waits: st.SearchStrategy[int] = _NO_ANSWERS,
    orders: st.SearchStrategy[str] = _NO_ORDER,
) -> st.SearchStrategy[Config]:
    """Draws all kinds of files; defaults more often than other values."""
    return st.builds(
        Config,
        partitions=st.integers(1, 2),
        first_records=st.integers(0, 6),
        commit_before=st.sampled_from([None, None, "", "garbage", OF_A_LOST_LEDGER]),
        start=st.sampled_from(["earliest", "latest", "uncommitted_earliest", "uncommitted_latest"]),
        isolation=_often("read_committed", "read_uncommitted"),
        guarantee=guarantees,
        on_external_reset=st.sampled_from(["fail", "follow", "restore"]),
        retries=st.integers(0, 2),
        delays=st.sampled_from([("0s", "1s"), ("0s", "1m"), ("10s", "1m")]),
        jitter=_often(0.0, 0.5),
        by_error=st.booleans(),
        buried=st.booleans(),
        tombstones=st.sampled_from(["skip", "deliver"]),
        window=st.integers(1, 12),
        most=st.integers(1, 12),
        breaker=_often(None, None, None, (0.5, 1), (0.5, 3)),
        behind=_often(None, None, None, (4, "skip"), (9, "fail")),
        pattern=st.booleans(),
        returns=_often(True, False),
        order=orders,
        waits=waits,
        restores=_often(False, True),
    )
