"""The options of the whole command, and Ctrl-C at any time: `--version`, `-q`, `-v`, completion, exit status 130."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import ackline
from ackline.cli.app import app
from ackline.cli.notices import Verbosity, is_quiet, notice, set_verbosity

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _normal_verbosity() -> Iterator[None]:
    yield
    set_verbosity(quiet=False, verbose=False)


def python(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "include")}
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_version_prints_the_version_and_nothing_else() -> None:
    shown = CliRunner().invoke(app, ["--version"])
    assert (shown.exit_code, shown.stdout) == (0, f"ackline {ackline.__version__}\n")


def test_help_lists_what_runs_then_what_shows_then_what_changes_then_what_sets_up() -> None:
    commands = list(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    assert commands == [
        "run", "try", "plan", "status", "history", "explain", "diff", "audit", "sql", "retry", "skip", "reset",
        "pause", "resume", "void", "adopt-ledger", "ack", "fail", "renew", "backfill", "dead", "init", "adopt",
        "doctor", "maintain", "demo", "dev",
    ]  # fmt: skip


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_a_completion(shell: str) -> None:
    environment = {"_ACKLINE_COMPLETE": f"source_{shell}", "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    shown = CliRunner().invoke(app, [], prog_name="ackline", env=environment)
    assert "_ACKLINE_COMPLETE" in shown.stdout


@pytest.mark.parametrize(
    ("options", "printed"),
    [([], ["normal"]), (["-q"], []), (["--quiet"], []), (["-v"], ["normal", "verbose"]),
     (["-q", "-v"], ["normal", "verbose"])],
)  # fmt: skip
def test_quiet_and_verbose_decide_what_is_printed_beside_the_result(
    options: list[str], printed: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    CliRunner().invoke(app, [*options, "dev", "--help"])
    capsys.readouterr()
    notice("normal")
    notice("verbose", Verbosity.VERBOSE)
    assert capsys.readouterr().err.splitlines() == [f"ackline: {text}" for text in printed]
    assert is_quiet() == (not printed)


IMPORTS = """
import sys
module = sys.argv[1]
class Interrupted:
    def find_spec(self, name, path=None, target=None):
        if name == module:
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupted())
import ackline.cli
sys.argv = ["ackline", "status", "orders"]
ackline.cli.main()
"""


@pytest.mark.parametrize("module", ["typer", "ackline.cli.app", "ackline.lane.adapters", "deltalake"])
def test_ctrl_c_during_the_imports_prints_no_traceback(module: str) -> None:
    ended = python(IMPORTS, module)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


IN_COMMAND = """
import os, signal, sys
import ackline.cli, ackline.cli.options
def interrupt(*arguments):
    os.kill(os.getpid(), signal.SIGINT)
ackline.cli.options.find_pipeline = interrupt
import atexit
atexit.register(interrupt)  # a second Ctrl-C while Python ends
sys.argv = ["ackline", *sys.argv[1:]]
ackline.cli.main()
"""


@pytest.mark.parametrize(
    ("command", "printed"),
    [("run", "ackline: stopped. Nothing is lost: the next run goes on with the open turn.\n"),
     ("status", "ackline: stopped.\n")],
)  # fmt: skip
def test_ctrl_c_in_a_command_prints_a_sentence_and_no_traceback(command: str, printed: str) -> None:
    ended = python(IN_COMMAND, command, "orders")
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", printed)


UNEXPECTED = """
import sys
import ackline.cli, ackline.cli.options
def fails(*arguments):
    raise RuntimeError("token=secret")
ackline.cli.options.find_pipeline = fails
sys.argv = ["ackline", "status", "orders"]
ackline.cli.main()
"""


def test_an_error_that_was_not_expected_is_shown_by_its_class_alone() -> None:
    """Its text may quote a secret or a payload (I13)."""
    ended = python(UNEXPECTED)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == "ackline: RuntimeError (ACKLINE_DEBUG=1 shows its text and where it was raised)\n"


PRINTS = """
import sys, types
sys.modules["ackline.cli.app"] = types.SimpleNamespace(main=lambda: print("no size: Größe"))
from ackline.cli import main
main()
"""


def test_a_letter_that_the_terminal_lacks_is_printed_as_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else an error message of a record would end `ackline run` with a traceback, after the turn."""
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    ended = python(PRINTS)
    assert (ended.returncode, ended.stdout) == (0, "no size: Gr\\xf6\\xdfe\n")


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


@pytest.mark.parametrize(("where", "printed"), [
    ("press_in_a_finalizer", "ackline: stopped.\n"),
    ("press_where_a_library_catches_it", "ackline: stopped.\n"),
    ("press_twice", ""),
])  # fmt: skip
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


def test_the_list_of_commands_has_groups_and_the_fixed_clock_comes_after_all_other_options() -> None:
    listed = CliRunner().invoke(app, ["--help"]).stdout
    places = [listed.index(f"─ {panel} ─") for panel in ("Run", "Look", "Act", "Set up")]
    assert places == sorted(places)
    options = CliRunner().invoke(app, ["run", "--help"]).stdout
    assert options.index("--now") > options.index("--help") > options.index("--max-records")
