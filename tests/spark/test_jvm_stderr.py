"""What Java prints before its log is configured does not reach the terminal; everything else does, at once."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackline.spark.session import NOISE, LineFilter

LINES = st.lists(st.sampled_from([*NOISE, b"WARNING: of a handler", b"x", b"", b"WARN", b"\xff\x1b[2K bar"]))


@given(LINES, st.integers(1, 7))
def test_only_the_lines_of_java_are_dropped_however_they_arrive(lines: list[bytes], size: int) -> None:
    text = b"".join(line + b" more\n" for line in lines)
    filtered = LineFilter()
    passed = b"".join(filtered.passed(text[start : start + size]) for start in range(0, len(text), size))
    assert passed + filtered.rest() == b"".join(line + b" more\n" for line in lines if line not in NOISE)


def test_a_progress_bar_without_an_end_of_line_passes_at_once() -> None:
    lines = LineFilter()
    assert lines.passed(b"\r\x1b[2Kreplaying 3/8") == b"\r\x1b[2Kreplaying 3/8"
    assert lines.passed(b" tasks") == b" tasks"


def test_a_warning_of_java_behind_a_progress_bar_is_dropped() -> None:
    """What comes before the warning may be a line that has not ended."""
    lines = LineFilter()
    assert lines.passed(b"\r\x1b[2Kreplaying 0/? WARNING: Using") == b"\r\x1b[2Kreplaying 0/? "
    assert lines.passed(b" incubator modules: jdk.incubator.vector\nreplaying 1/2") == b"replaying 1/2"


@pytest.mark.parametrize("text", [b"WARNING: Us", b"W"])
def test_a_line_that_only_begins_like_one_of_java_is_passed_at_the_end(text: bytes) -> None:
    lines = LineFilter()
    assert (lines.passed(text), lines.rest()) == (b"", text)


PROGRAM = """
import subprocess, sys
from ackline.spark.session import quiet_jvm
child = "import sys; sys.stdin.readline(); sys.stderr.write('WARNING: Using incubator modules: x\\\\nan error\\\\n')"
with quiet_jvm():
    started = subprocess.Popen([sys.executable, "-c", child], stdin=subprocess.PIPE, text=True)
    sys.stderr.write("during\\n")
sys.stderr.write("after\\n")
started.communicate("go on\\n")
import threading
[thread.join(30) for thread in threading.enumerate() if thread.name == "ackline-jvm-stderr"]
"""


def test_a_process_is_filtered_for_as_long_as_it_lives() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    assert sorted(done.stderr.splitlines()) == ["after", "an error", "during"]


LAST_WORDS = """
import os, sys
from ackline.spark import session
session._pass_on = lambda source, real: None
{interrupt}
try:
    with session.quiet_jvm():
        sys.stderr.write("inside\\n")
        raise KeyboardInterrupt
except KeyboardInterrupt:
    sys.stderr.write("after\\n")
    os._exit(0)
"""


WHILE_IT_BEGINS = """
def interrupt(*_): raise KeyboardInterrupt
session.threading.Thread.start = interrupt
"""


@pytest.mark.parametrize(
    ("interrupt", "printed"),
    [("", ["inside", "after"]), (WHILE_IT_BEGINS, ["after"])],
    ids=["during the context", "while it begins"],
)
def test_what_this_process_prints_last_is_seen_although_the_filter_does_not_run(
    interrupt: str, printed: list[str]
) -> None:
    """Ctrl-C may end the process before the thread of the filter has written anything."""
    script = LAST_WORDS.format(interrupt=interrupt)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr.splitlines() == printed
