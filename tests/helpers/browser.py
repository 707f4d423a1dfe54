"""Chromium without a window, driven by its DevTools protocol over a pipe."""

import base64
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
)  # fmt: skip
# The browser reads from descriptor 3 and writes to 4.
LAUNCH = "import os, sys; [os.dup2(int(sys.argv[i]), i + 2) for i in (1, 2)]; os.execv(sys.argv[3], sys.argv[3:])"


class Browser:
    """A browser with one tab; `errors` are what pages complained about."""

    def __init__(self, profile: Path):
        assert CHROMIUM is not None
        theirs_in, ours_out = os.pipe()
        ours_in, theirs_out = os.pipe()
        ends = [str(theirs_in), str(theirs_out)]
        browser = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        command = [sys.executable, "-c", LAUNCH, *ends, *browser]
        quiet = dict(stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.process = subprocess.Popen(command, pass_fds=(theirs_in, theirs_out), **quiet)  # type: ignore[call-overload]
        os.close(theirs_in)
        os.close(theirs_out)
        self.out, self.into = os.fdopen(ours_out, "wb"), os.fdopen(ours_in, "rb")
        self.count, self.session, self.rest, self.loaded = 0, None, b"", False
        self.errors: list[str] = []
        targets = self.send("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        self.session = self.send("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.send(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.send("Browser.close")
        self.process.wait(30)
        self.out.close()
        self.into.close()

    def send(self, method: str, **parameters: Any) -> Any:
        """Call a method of the protocol and wait for its result."""
        self.count += 1
        call = {"id": self.count, "method": method, "params": parameters}
        if self.session and not method.startswith(("Target.", "Browser.")):
            call["sessionId"] = self.session
        self.out.write(json.dumps(call).encode() + b"\0")
        self.out.flush()
        while True:
            message = self._receive()
            if message.get("id") == self.count:
                assert "error" not in message, message["error"]
                return message["result"]

    def open(self, url: str) -> None:
        """Go to a page and wait until it has loaded."""
        self.errors = []
        self.loaded = False
        self.send("Page.navigate", url=url)
        while not self.loaded:
            self._receive()

    def wait_for_load(self) -> None:
        """Wait until the page has loaded itself again."""
        self.loaded = False
        while not self.loaded:
            self._receive()

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        result = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def move(self, x: float, y: float) -> None:
        """Move the pointer."""
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, selector: str) -> None:
        """Press and release the mouse on an element."""
        x, y = self.evaluate(
            f"(() => {{ const element = document.querySelector({json.dumps(selector)});"
            "element.scrollIntoView({block: 'center', behavior: 'instant'});"
            "const r = element.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def resize(self, width: int, height: int, scale: float = 1, *, mobile: bool = False) -> None:
        """The size of the window, in the page's pixels."""
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=mobile
        )

    def prefer(self, scheme: str) -> None:
        """`light` or `dark`, as the system would."""
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def screenshot(self, path: Path, *, whole: bool = True) -> None:
        """A picture of the page."""
        shot = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    def _receive(self) -> Any:
        while b"\0" not in self.rest:
            piece = os.read(self.into.fileno(), 1 << 16)
            assert piece, "the browser has gone"
            self.rest += piece
        text, _, self.rest = self.rest.partition(b"\0")
        message = json.loads(text)
        self._note(message)
        return message

    def _note(self, message: Any) -> None:
        method, parameters = message.get("method"), message.get("params", {})
        if method == "Page.loadEventFired":
            self.loaded = True
        elif method == "Runtime.exceptionThrown":
            self.errors.append(str(parameters["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.errors.append(str(parameters["args"]))
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.errors.append(parameters["entry"]["text"])
