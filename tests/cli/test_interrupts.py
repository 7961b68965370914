"""Ctrl-C ends a command with 130, wherever it is: in code that drops KeyboardInterrupt, too."""

import signal
import subprocess
import sys

import pytest

SCRIPT = """
import os, signal, time
from ackline.cli import interrupts
interrupts.GRACE_SECONDS = 0.2
interrupts.end_on_ctrl_c()

def press():
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.01)

class Finalized:
    def __del__(self):
        press()

def press_in_a_finalizer():
    Finalized()
    time.sleep(60)

def press_where_a_library_catches_it():
    while True:
        try:
            press()
            time.sleep(60)
        except KeyboardInterrupt:
            time.sleep(60)

def press_twice():
    interrupts.GRACE_SECONDS = 60
    try:
        press()
    except KeyboardInterrupt:
        press()

"""


@pytest.mark.parametrize(
    ("where", "printed"),
    [
        ("press_in_a_finalizer", "ackline: stopped.\n"),
        ("press_where_a_library_catches_it", "ackline: stopped.\n"),
        ("press_twice", ""),
    ],
)
def test_ctrl_c_ends_the_process_although_its_exception_is_dropped(where: str, printed: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"{SCRIPT}\n{where}()"], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", printed)


def test_another_exception_that_python_drops_is_reported_as_ever() -> None:
    script = SCRIPT.replace(
        "        press()\n\ndef press_in", "        raise OSError('of a finalizer')\n\ndef press_in"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"{script}\nFinalized()"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0
    assert "OSError: of a finalizer" in done.stderr


def test_ctrl_c_that_nothing_catches_is_a_keyboard_interrupt() -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"{SCRIPT}\npress()"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == -signal.SIGINT
    assert "KeyboardInterrupt" in done.stderr
