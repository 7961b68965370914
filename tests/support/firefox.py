"""A headless Firefox for the tests, and a client of its WebDriver BiDi protocol.

The browser is that of the system. Unlike Chromium, no npm package holds its binary with its libraries.
"""

import base64
import itertools
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

from tests.support.chromium import ANSWER_SECONDS, NoBrowserError

NAMES = ("firefox-esr", "firefox")
START_SECONDS = 90.0
_PREFERENCES = {
    "app.update.enabled": False,
    "browser.shell.checkDefaultBrowser": False,
    "datareporting.policy.dataSubmissionEnabled": False,
    "network.proxy.type": 0,
    "ui.prefersReducedMotion": 1,
}


@contextmanager
def firefox(profile: Path) -> Iterator["FirefoxTab"]:
    """Runs a browser with an empty profile, and yields its only tab. Raises NoBrowserError if there is none."""
    program = next((path for path in map(shutil.which, NAMES) if path), None)
    if program is None:
        raise NoBrowserError("needs Firefox (Debian: apt install firefox-esr)")
    profile.mkdir(parents=True, exist_ok=True)
    lines = [f"user_pref({json.dumps(name)}, {json.dumps(value)});" for name, value in _PREFERENCES.items()]
    (profile / "user.js").write_text("\n".join(lines))
    command = [program, "--headless", "--no-remote", "--profile", str(profile), "--remote-debugging-port", "0"]
    log = profile / "firefox.log"
    with log.open("w") as errors:
        process = subprocess.Popen(
            command, env={**os.environ, "HOME": str(profile), "MOZ_HEADLESS": "1"}, stdin=subprocess.DEVNULL,
            stdout=errors, stderr=errors, start_new_session=True,
        )  # fmt: skip
        try:
            with connect(_address(process, profile, log), max_size=None, proxy=None, ping_interval=None) as connection:
                yield FirefoxTab(connection)
        finally:
            process.kill()
            process.wait()


def _address(process: "subprocess.Popen[bytes]", profile: Path, log: Path) -> str:
    """Returns the address of the protocol, once the browser listens."""
    file, until = profile / "WebDriverBiDiServer.json", time.monotonic() + START_SECONDS
    while not (file.exists() and file.read_text().strip()):
        if process.poll() is not None:
            raise NoBrowserError(f"Firefox does not run here: {log.read_text(errors='replace')[-500:]}")
        assert time.monotonic() < until, log.read_text(errors="replace")[-500:]
        time.sleep(0.05)
    server = json.loads(file.read_text())
    return f"ws://{server['ws_host']}:{server['ws_port']}/session"


class FirefoxTab:
    """A tab of the browser."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._ids = itertools.count(1)
        self.command("session.new", capabilities={})
        self._context = self.command("browsingContext.getTree")["contexts"][0]["context"]

    def command(self, method: str, **parameters: object) -> dict[str, Any]:
        """Sends a command, and returns its result. Raises AssertionError if the browser refuses it."""
        number = next(self._ids)
        self._connection.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._connection.recv(timeout=ANSWER_SECONDS))
            if message.get("id") == number:
                assert message["type"] == "success", (method, message)
                result: dict[str, Any] = message["result"]
                return result

    def size(self, width: int, height: int) -> None:
        """Sets the viewport."""
        viewport = {"width": width, "height": height}
        self.command("browsingContext.setViewport", context=self._context, viewport=viewport)

    def open(self, url: str) -> None:
        """Opens an address and waits until the page is loaded."""
        self.command("browsingContext.navigate", context=self._context, url=url, wait="complete")

    def run(self, script: str) -> Any:
        """Returns the value of an expression in the page. Raises AssertionError if it throws."""
        answer = self.command(
            "script.evaluate", expression=f"JSON.stringify(({script}) ?? null)", target={"context": self._context},
            awaitPromise=True,
        )  # fmt: skip
        assert answer["type"] == "success", (script, answer)
        return json.loads(answer["result"]["value"])

    def screenshot(self, file: Path) -> None:
        """Writes a picture of the viewport as PNG."""
        picture = self.command("browsingContext.captureScreenshot", context=self._context)["data"]
        file.write_bytes(base64.b64decode(picture))
