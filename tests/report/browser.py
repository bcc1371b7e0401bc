"""Drives a real browser, if there is one: Chromium's protocol over a pipe, by the standard library alone."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

PLACE = "import os, sys; os.dup2({}, 3); os.dup2({}, 4); os.execv(sys.argv[1], sys.argv[1:])"
NAMES = ("chromium", "chromium-browser", "google-chrome")


def find_browser() -> str | None:
    """Name the browser that is here, if any."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One headless browser with one page; messages end with a zero byte, in on 3, out on 4."""

    def __init__(self, program: str, profile: Path, patience: float = 300.0) -> None:
        self.patience, self.number, self.buffer = patience, 0, b""
        self.events: list[dict[str, Any]] = []
        (theirs_in, self.write), (self.read, theirs_out) = os.pipe(), os.pipe()
        # Above 4, so that putting one into its place cannot close the other.
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 20) for end in (theirs_in, theirs_out)]
        words = [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"]
        words += [
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
            "--no-first-run",
            f"--user-data-dir={profile}",
        ]
        self.process = subprocess.Popen(
            [sys.executable, "-c", PLACE.format(*ends), *words, "about:blank"],
            pass_fds=ends,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for end in (*ends, theirs_in, theirs_out):
            os.close(end)
        self.session = ""
        try:
            self._attach()
        except BaseException:
            self.process.kill()
            self.process.wait()
            os.close(self.write)
            os.close(self.read)
            raise

    def _attach(self) -> None:
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.session = ""
            self.call("Browser.close")
            self.process.wait(10)
        except (OSError, TimeoutError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()
        os.close(self.write)
        os.close(self.read)

    def call(self, method: str, **parameters: Any) -> Any:
        """Ask the browser; events that come meanwhile are kept."""
        self.number += 1
        message: dict[str, Any] = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + self.patience
        while True:
            answer = self._next(until)
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]
            self.events.append(answer)

    def _next(self, until: float) -> dict[str, Any]:
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.read], [], [], max(0.0, until - time.monotonic()))
            piece = os.read(self.read, 1 << 20) if ready else b""
            if not piece:
                raise TimeoutError("the browser says nothing")
            self.buffer += piece
        message, _, self.buffer = self.buffer.partition(b"\0")
        return dict(json.loads(message))

    def size(self, width: int, height: int = 900) -> None:
        """Give the window another size; a narrow one is a phone's."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )

    def scheme(self, colours: str, media: str = "screen") -> None:
        """Have the system prefer light or dark, on a screen or in print."""
        features = [{"name": "prefers-color-scheme", "value": colours}]
        self.call("Emulation.setEmulatedMedia", media=media, features=features)

    def open(self, page: Path, fragment: str = "") -> None:
        """Load a file anew, and wait until it is there."""
        self._go("about:blank")
        self.events.clear()
        self._go(page.resolve().as_uri() + fragment)

    def _go(self, address: str) -> None:
        self.call("Page.navigate", url=address)
        until = time.monotonic() + self.patience
        while self.run("document.readyState + ' ' + location.href") != f"complete {address}":
            if time.monotonic() > until:
                raise TimeoutError(f"{address} does not load")
            time.sleep(0.02)

    def run(self, script: str) -> Any:
        """Evaluate an expression in the page; promises are waited for."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(json.dumps(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def key(self, name: str, code: int, text: str = "") -> None:
        """Press and release a key."""
        about = {"key": name, "windowsVirtualKeyCode": code, "code": name}
        self.call("Input.dispatchKeyEvent", type="keyDown", **about, **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **about)

    def problems(self) -> list[str]:
        """Give what went to the console as a warning or error, and exceptions."""
        found = []
        for event in self.events:
            about = event.get("params", {})
            if event.get("method") == "Runtime.exceptionThrown":
                found.append(json.dumps(about["exceptionDetails"]))
            elif event.get("method") == "Log.entryAdded" and about["entry"]["level"] in ("warning", "error"):
                found.append(about["entry"]["text"])
            elif event.get("method") == "Runtime.consoleAPICalled" and about["type"] in ("warning", "error"):
                found.append(json.dumps(about["args"]))
        return found

    def requests(self) -> list[str]:
        """Give the addresses that were asked for."""
        sent = (event for event in self.events if event.get("method") == "Network.requestWillBeSent")
        return [event["params"]["request"]["url"] for event in sent]

    def picture(self, file: Path, *, whole: bool = False) -> None:
        """Keep what is to be seen as PNG."""
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        file.write_bytes(base64.b64decode(shot["data"]))
