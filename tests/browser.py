"""A headless Chromium, driven by the DevTools protocol over a websocket of the standard library."""

import base64
import contextlib
import json
import os
import shutil
import socket
import struct
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)
"""The browser; None if there is none."""


class Tab:
    """A tab of the browser.

    Attributes:
      events: what the browser has reported, (method, parameters) each.
    """

    def __init__(self, url: str):
        host, _, path = url.removeprefix("ws://").partition("/")
        name, _, port = host.partition(":")
        self._socket = socket.create_connection((name, int(port)), timeout=30)
        key = base64.b64encode(os.urandom(16)).decode()
        self._socket.sendall(
            f"GET /{path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        self._stream = self._socket.makefile("rb")
        assert b" 101 " in self._stream.readline()
        while self._stream.readline().strip():
            pass
        self.events: list[tuple[str, Any]] = []
        self._calls = 0

    def call(self, method: str, **params: Any) -> Any:
        """Call a method of the protocol; return its result."""
        self._calls += 1
        self._send(json.dumps({"id": self._calls, "method": method, "params": params}).encode())
        while True:
            message = json.loads(self._receive())
            if message.get("id") == self._calls:
                assert "error" not in message, message["error"]
                return message["result"]
            self.events.append((message["method"], message["params"]))

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression in JavaScript, awaited if it is a promise."""
        result = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait_for(self, condition: str) -> None:
        """Wait until a condition in JavaScript holds."""
        for _ in range(200):
            if self.evaluate(condition):
                return
            time.sleep(0.05)
        raise AssertionError(f"never true: {condition}")

    def press(self, key: str, text: str = "") -> None:
        """Press and release a key."""
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, text=text * (kind == "keyDown"))

    def mouse(self, kind: str, x: float, y: float) -> None:
        """Dispatch a mouse event of a kind: mouseMoved, mousePressed, mouseReleased."""
        button = {} if kind == "mouseMoved" else {"button": "left", "clickCount": 1}
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **button)

    def screenshot(self, path: Path) -> None:
        """Write what is seen as a PNG file."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def close(self) -> None:
        self._stream.close()
        self._socket.close()

    def _send(self, data: bytes) -> None:
        assert len(data) < 1 << 16
        mask = os.urandom(4)
        masked = bytes(byte ^ mask[k % 4] for k, byte in enumerate(data))
        self._socket.sendall(b"\x81" + struct.pack(">BH", 0x80 | 126, len(data)) + mask + masked)

    def _receive(self) -> bytes:
        data, is_last = b"", False
        while not is_last:
            head, size = self._stream.read(2)
            is_last = bool(head & 0x80)
            if size > 125:
                form = ">H" if size == 126 else ">Q"
                (size,) = struct.unpack(form, self._stream.read(struct.calcsize(form)))
            data += self._stream.read(size)
        return data


@contextlib.contextmanager
def browse(url: str, profile: Path, width: int = 1280, height: int = 800) -> Iterator[Tab]:
    """Open a page.

    Args:
      url: its address.
      profile: a new folder for the browser.
      width: width of the window, in pixels.
      height: its height.
    """
    command = [str(CHROMIUM), "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run"]
    command += ["--disable-background-networking", f"--window-size={width},{height}"]
    command += ["--remote-debugging-port=0", f"--user-data-dir={profile}", "about:blank"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        port = profile / "DevToolsActivePort"
        for _ in range(600):
            if port.exists() and port.read_text().count("\n"):
                break
            time.sleep(0.05)
        address = f"http://127.0.0.1:{port.read_text().split()[0]}/json/list"
        with urllib.request.urlopen(address, timeout=30) as answer:
            (target,) = (one for one in json.load(answer) if one["type"] == "page")
        tab = Tab(target["webSocketDebuggerUrl"])
        for domain in ("Runtime", "Log", "Network", "Page"):
            tab.call(f"{domain}.enable")
        tab.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip
        tab.call("Page.navigate", url=url)
        with contextlib.closing(tab):
            yield tab
    finally:
        process.terminate()
        process.wait()
