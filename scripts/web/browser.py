"""Headless Chromium for tests and pictures of the exporter's page, by the DevTools protocol over a pipe."""

import base64
import json
import os
import subprocess
import tempfile
import time

OPTIONS = (
    "--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --disable-quic --no-first-run --hide-scrollbars "
    "--disable-background-networking --disable-component-update --disable-sync --no-proxy-server "
    "--remote-debugging-pipe about:blank"
)


class Browser:
    """A page; the browser ends with it."""

    def __init__(self):
        self.home = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        (there, self.write), (self.read, back) = os.pipe(), os.pipe()
        profile = f"--user-data-dir={self.home.name}/profile"
        # The numbers ascend: no redirection closes what another needs.
        self.child = subprocess.Popen(
            ["bash", "-c", f'exec chromium "$@" 3<&{there} 4>&{back}', "-", *OPTIONS.split(), profile],
            env=os.environ | {"HOME": self.home.name},
            pass_fds=(there, back),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(there), os.close(back)
        self.left, self.number, self.session, self.complaints = b"", 0, None, []
        page = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.ask("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ["Page", "Runtime", "Log"]:
            self.ask(f"{domain}.enable")

    def message(self):
        while b"\0" not in self.left:
            part = os.read(self.read, 1 << 20)
            if not part:
                raise SystemExit("browser.py: chromium has ended")
            self.left += part
        text, self.left = self.left.split(b"\0", 1)
        return json.loads(text)

    def ask(self, method, **parameters):
        self.number += 1
        request = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            request["sessionId"] = self.session
        os.write(self.write, json.dumps(request).encode() + b"\0")
        while True:
            answer = self.message()
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise SystemExit(f"browser.py: {method}: {answer['error']}")
                return answer["result"]
            self.hear(answer)

    def hear(self, event):
        """Collects errors of scripts and refusals of the policy."""
        parameters = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(parameters["exceptionDetails"]))
        elif event.get("method") == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.complaints.append(parameters["entry"]["text"])

    def look(self, width, scheme, height=900):
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def go(self, url):
        # A change of the address's last part loads nothing.
        self.ask("Page.navigate", url="about:blank")
        self.ask("Page.navigate", url=url)

    def value(self, expression):
        answer = self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise SystemExit(f"browser.py: {expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def until(self, expression, seconds=60):
        """Waits until an expression is true."""
        end = time.monotonic() + seconds
        while not self.value(f"Boolean({expression})"):
            if time.monotonic() > end:
                raise SystemExit(f"browser.py: timed out, waiting until {expression}\n{self.value('document.body.innerText')}")
            time.sleep(0.05)

    def picture(self, path, is_whole=False):
        data = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=is_whole)["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(data))

    def close(self):
        self.child.kill()
        self.child.wait()
        self.home.cleanup()
