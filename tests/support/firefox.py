"""A headless Firefox for the tests, and a client of its WebDriver BiDi protocol.

The browser is that of the system. Unlike Chromium, no npm package holds its binary with its libraries.
"""

import base64
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection

from tests.support.chromium import Client, NoBrowserError, connected

NAMES = ("firefox-esr", "firefox")
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
    environment = {**os.environ, "HOME": str(profile), "MOZ_HEADLESS": "1"}
    with connected(command, environment, profile / "WebDriverBiDiServer.json", _address_of_session) as connection:
        yield FirefoxTab(connection)


def _address_of_session(listens: str) -> str:
    server = json.loads(listens)
    return f"ws://{server['ws_host']}:{server['ws_port']}/session"


class FirefoxTab(Client):
    def __init__(self, connection: ClientConnection) -> None:
        super().__init__(connection)
        self.command("session.new", capabilities={})
        self._context = self.command("browsingContext.getTree")["contexts"][0]["context"]

    def size(self, width: int, height: int) -> None:
        viewport = {"width": width, "height": height}
        self.command("browsingContext.setViewport", context=self._context, viewport=viewport)

    def open(self, url: str) -> None:
        self.command("browsingContext.navigate", context=self._context, url=url, wait="complete")

    def run(self, script: str) -> Any:
        answer = self.command(
            "script.evaluate", expression=f"JSON.stringify(({script}) ?? null)", target={"context": self._context},
            awaitPromise=True,
        )  # fmt: skip
        assert answer["type"] == "success", (script, answer)
        return json.loads(answer["result"]["value"])

    def screenshot(self, file: Path) -> None:
        picture = self.command("browsingContext.captureScreenshot", context=self._context)["data"]
        file.write_bytes(base64.b64decode(picture))
