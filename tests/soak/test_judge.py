"""The judge of a soak finds a leak in figures as noisy as those of a real soak, and finds none where there is none."""

import random
from collections.abc import Callable, Mapping

import pytest

from tests.soak.judge import MIB, RULES, Sample, judge

MINUTES, TURNS_A_MINUTE = 60, 25
Leak = Callable[[float], Mapping[str, float]]
"""What a leak adds to the figures of a process that has made so many turns."""


def soak(seed: int, leak: Leak = lambda turns: {}, minutes: int = MINUTES) -> list[Sample]:
    """Returns the samples of a soak: figures that warm up and jitter, with minutes in which a broker is away."""
    rng, samples = random.Random(seed), []
    for minute in range(1, minutes + 1):
        warm, away = min(1.0, minute / (minutes / 5)), rng.random() < 0.1
        figures = {
            "driver_rss": (260 + 60 * warm + rng.gauss(0, 4)) * MIB,
            "jvm_heap": (90 + 40 * warm + rng.gauss(0, 6)) * MIB,
            "jvm_rss": (700 + 500 * warm + rng.gauss(0, 15)) * MIB,
            "driver_fds": 60 + rng.randrange(6),
            "jvm_fds": 420 + rng.randrange(12),
            "driver_threads": 12 + rng.randrange(3),
            "jvm_threads": 110 + rng.randrange(9),
            "temporary": 20 + rng.randrange(5),
            "files_per_turn": 8 + 22 * warm + rng.randrange(4),
            "staged": rng.randrange(6),
            "bytes_per_outcome": 180 + 200 / minute + rng.gauss(0, 3),
            "turn_cpu": 0.9 * rng.lognormvariate(0, 0.15),
            "turn_median": 1.1 * rng.lognormvariate(0, 0.3) * (8 if away else 1),
        }
        added = leak(minute * TURNS_A_MINUTE)
        samples.append(Sample(minute, {name: value + added.get(name, 0) for name, value in figures.items()}))
    return samples


def found(samples: list[Sample]) -> set[str]:
    return {growth.rule.figure for growth in judge(samples) if growth.grown}


def test_a_healthy_soak_grows_in_nothing_whatever_its_noise() -> None:
    assert {seed: grown for seed in range(200) if (grown := found(soak(seed)))} == {}


LEAKS: dict[str, Leak] = {
    "a file that each turn leaves open": lambda turns: {"driver_fds": turns},
    "a file that every fiftieth turn leaves open": lambda turns: {"driver_fds": turns // 50},
    "a socket of the JVM": lambda turns: {"jvm_fds": turns // 10},
    "a thread of the JVM that each turn leaves": lambda turns: {"jvm_threads": turns},
    "100 KiB of Python that each turn keeps": lambda turns: {"driver_rss": turns * 100 * 1024},
    "100 KiB of the heap": lambda turns: {"jvm_heap": turns * 100 * 1024},
    "a thread that every fiftieth turn leaves": lambda turns: {"driver_threads": turns // 50},
    "a temporary folder": lambda turns: {"temporary": turns // 20},
    "a staging folder that is never removed": lambda turns: {"staged": turns // 10},
    "files that nothing removes": lambda turns: {"files_per_turn": turns * 8 / (10 * TURNS_A_MINUTE)},
    "bytes that are of no outcome": lambda turns: {"bytes_per_outcome": turns / 10},
    "a turn that reads all turns before it": lambda turns: {"turn_cpu": turns / 400, "turn_median": turns / 300},
}


@pytest.mark.parametrize("leak", LEAKS)
def test_a_leak_is_found_and_nothing_else(leak: str) -> None:
    for seed in range(40):
        samples = soak(seed, LEAKS[leak])
        assert found(samples) == set(LEAKS[leak](1_000)), (leak, seed)


def test_what_only_warms_up_and_what_jumps_for_some_minutes_is_no_growth() -> None:
    def warms_up(turns: float) -> Mapping[str, float]:
        return {"driver_rss": min(turns, 200) * MIB, "turn_median": 60.0 * (turns % 250 == 0)}

    assert found(soak(1, warms_up)) == set()


def test_each_figure_of_a_soak_too_short_is_named_as_not_judged() -> None:
    short = judge(soak(1, lambda turns: {"driver_fds": turns}, minutes=5))
    assert [str(growth) for growth in short] == [f"{rule.what}: not judged, too few samples" for rule in RULES]


def test_the_sentence_of_a_figure_has_both_medians_the_limit_and_the_verdict() -> None:
    samples = [Sample(minute, {"driver_rss": (300 if minute <= 40 else 400) * MIB}) for minute in range(1, 61)]
    (growth, *_) = judge(samples)
    assert str(growth) == "memory of the driver's Python: 300 → 400 MiB, at most 354: GROWN"
