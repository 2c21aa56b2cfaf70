"""An isolated JupyterLab on a free port of this machine, and a notebook open in it under Playwright."""
from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator

EXPLORER = ".mha-explorer"
WINDOW = {"width": 1280, "height": 900}  # pixels
HIGH = {**WINDOW, "height": 2400}        # of a screenshot of a part of the page

SETTINGS = {
    "@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False},
    "@jupyterlab/docmanager-extension:plugin": {"autosave": False},
    "@jupyterlab/notebook-extension:tracker": {
        "windowingMode": "none",  # every cell is on the page
        "scrollPastEnd": False,  # a screenshot ends where the notebook ends
    },
}

# Messages that say nothing about the notebook.
HARMLESS = (
    "No such comm",  # the page asks every new kernel for widgets that an earlier page may have left there
)

# A callback's exception and whatever a kernel prints to stderr reach only this channel, never the page.
REPORT_KERNEL_TROUBLE = """kernel => kernel.iopubMessage.connect((_, {header, content, parent_header}) => {
    const from = `in answer to ${parent_header.msg_type}`;
    if (header.msg_type === 'error') console.error(`kernel, ${from}: ${content.ename}: ${content.evalue}`);
    if (content.name === 'stderr') console.error(`stderr, ${from}: ${content.text}`);
})"""


def find_chromium() -> str | None:
    """The program that CHROMIUM names, else the first Chromium or Chrome on the PATH, else None."""
    programs = ("chromium", "chromium-browser", "google-chrome")
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, programs)), None)


@contextmanager
def chromium(program: str) -> Iterator[Browser]:
    """A headless browser that Playwright drives."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program)
        yield browser
        browser.close()


@contextmanager
def jupyterlab(folder: Path) -> Iterator[str]:
    """Serves `folder` and gives the address. Settings, runtime files and signatures are the server's own."""
    with tempfile.TemporaryDirectory(prefix="lab-", ignore_cleanup_errors=True) as home:
        overrides = Path(home, "config", "labconfig", "default_setting_overrides.json")
        overrides.parent.mkdir(parents=True)
        overrides.write_text(json.dumps(SETTINGS))
        port, log = _free_port(), Path(home, "server.log")
        server = _start_server(folder, Path(home), port, log)
        try:
            address = f"http://127.0.0.1:{port}"
            _wait_until_served(address, server, log)
            yield address
        finally:
            _stop(server)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def _start_server(folder: Path, home: Path, port: int, log: Path) -> subprocess.Popen:
    own = {"JUPYTER_CONFIG_DIR": home / "config", "JUPYTER_RUNTIME_DIR": home / "runtime",
           "JUPYTERLAB_SETTINGS_DIR": home / "settings", "JUPYTERLAB_WORKSPACES_DIR": home / "workspaces",
           "IPYTHONDIR": home / "ipython"}  # not JUPYTER_DATA_DIR, through which the kernels are found
    options = {"ServerApp.root_dir": folder, "ServerApp.ip": "127.0.0.1", "ServerApp.port": port,
               "ServerApp.port_retries": 0, "IdentityProvider.token": "", "ServerApp.password": "",
               "LabApp.expose_app_in_browser": True,
               "LabApp.check_for_updates_class": "jupyterlab.NeverCheckForUpdate",
               "NotebookNotary.db_file": ":memory:"}  # no notebook was trusted before
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root",
               *(f"--{name}={value}" for name, value in options.items())]
    with log.open("wb") as stream:
        return subprocess.Popen(command, stdout=stream, stderr=subprocess.STDOUT, start_new_session=True,
                                env={**os.environ, **{name: str(path) for name, path in own.items()}})


def _wait_until_served(address: str, server: subprocess.Popen, log: Path, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while server.poll() is None and time.monotonic() < deadline:
        try:
            urllib.request.urlopen(f"{address}/api/status", timeout=2).close()
            return
        except OSError:
            time.sleep(0.05)
    raise RuntimeError(f"JupyterLab did not start within {seconds} s. It said:\n{log.read_text()[-3000:]}")


def _stop(server: subprocess.Popen) -> None:
    """SIGTERM lets the server end its kernels; the whole group goes if it does not come to an end."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        if server.poll() is None:
            os.killpg(server.pid, sign)
            try:
                server.wait(15)
            except subprocess.TimeoutExpired:
                continue


class NotebookPage:
    """A notebook in JupyterLab, its kernel ready. Errors of page, console and kernel gather in `problems`."""

    def __init__(self, browser: Browser, address: str, name: str):
        self.page = page = browser.new_page(viewport=WINDOW, reduced_motion="reduce")
        self.cells = page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-Notebook .jp-Cell")
        self._problems: list[str] = []
        page.on("pageerror", lambda error: self._problems.append(f"page: {error}"))
        page.on("console", lambda message: message.type == "error" and self._problems.append(message.text))
        page.goto(f"{address}/lab/tree/{name}?reset", wait_until="domcontentloaded")
        page.locator("#jupyterlab-splash").wait_for(state="detached", timeout=60_000)
        self.cells.first.wait_for(timeout=60_000)
        # The indicator's "idle" is there before the kernel is: a run started then never ends.
        self.evaluate("await panel.context.ready; await session.ready; await session.session.kernel.info;"
                      f"({REPORT_KERNEL_TROUBLE})(session.session.kernel);")

    def evaluate(self, body: str, seconds: float = 60) -> Any:
        """Runs the body of an async function of `app`, `panel` and `session`; gives up after `seconds`."""
        return self.page.evaluate("""([body, seconds]) => {
            const app = window.jupyterapp, panel = app.shell.currentWidget, session = panel.sessionContext;
            const task = Object.getPrototypeOf(async () => {}).constructor('app', 'panel', 'session', body);
            const late = new Error(`no end after ${seconds} s`);
            const timer = new Promise((_, reject) => setTimeout(() => reject(late), 1000 * seconds));
            return Promise.race([task(app, panel, session), timer]);
        }""", [body, seconds])

    def run_all(self, seconds: float = 180) -> bool:
        """Runs every cell and waits until all widgets are on the page. False when a cell raised."""
        done = self.evaluate("return await app.commands.execute('notebook:run-all-cells')", seconds)
        self.page.wait_for_function("""() => [...document.querySelectorAll(
            '.jp-OutputArea-output[data-mime-type="application/vnd.jupyter.widget-view+json"]')]
            .every(output => output.querySelector('.jupyter-widgets'))""")
        return done

    def explorers(self) -> list[Locator]:
        return self.page.locator(EXPLORER).all()

    def images(self) -> list[list[dict]]:
        """The images of each cell: alternative text, start of the address, width (0 if not loaded)."""
        return self.cells.evaluate_all("""cells => Promise.all(cells.map(cell => Promise.all(
            [...cell.querySelectorAll('img')].map(async image => {
                await image.decode().catch(() => {});
                const width = image.naturalWidth && image.width;
                return {alt: image.alt, source: image.src.slice(0, 80), width};
            }))))""")

    def cells_with(self, selector: str) -> list[int]:
        """Indices of the cells with such an element, one for each element."""
        counts = self.cells.evaluate_all(
            "(cells, selector) => cells.map(cell => cell.querySelectorAll(selector).length)", selector)
        return [i for i, count in enumerate(counts) for _ in range(count)]

    def accessible_names(self, element: str) -> list[tuple[str, str]]:
        """Role and name of all that Chromium tells a screen reader about an element, given as JavaScript."""
        devtools = self.page.context.new_cdp_session(self.page)
        found = devtools.send("Runtime.evaluate", {"expression": element})["result"]["objectId"]
        nodes = devtools.send("Accessibility.queryAXTree", {"objectId": found})["nodes"]
        devtools.detach()
        return [(node["role"]["value"], node["name"]["value"]) for node in nodes if not node["ignored"]]

    def parts(self) -> Iterator[int]:
        """Scrolls through the notebook in a high window: the numbers of the parts, from 1, while each is in view."""
        view = "const view = panel.node.querySelector('.jp-WindowedPanel-outer');"
        low = self.evaluate(f"{view} return view.clientHeight")
        self.page.set_viewport_size(HIGH)
        self.page.wait_for_function(
            """low => [...document.querySelectorAll('.jp-WindowedPanel-outer')].some(view => view.clientHeight > low)""", arg=low)
        count = self.evaluate(f"{view} return Math.ceil(view.scrollHeight / view.clientHeight)")
        for number in range(count):
            self.evaluate(f"{view} view.scrollTop = {number} * view.clientHeight")
            yield number + 1
        self.page.set_viewport_size(WINDOW)

    @property
    def problems(self) -> list[str]:
        self.page.evaluate("0")  # whatever the page reported before this answer has arrived now
        return [problem for problem in self._problems if not any(words in problem for words in HARMLESS)]

    def set_theme(self, theme: str) -> None:
        """`light` or `dark`."""
        name = f"JupyterLab {theme.title()}"
        self.evaluate(f"await app.commands.execute('apputils:change-theme', {{theme: '{name}'}})")
        self.page.locator(f"body[data-jp-theme-name='{name}']").wait_for(state="attached")

    def close(self) -> None:
        self.evaluate("await session.shutdown()")
        self.page.close()
