"""How fast the first explorer answers, against the same picture drawn with `interact` and Matplotlib.

    python tests/benchmarks/explorers.py

Prints milliseconds in the kernel, milliseconds to the eye in JupyterLab, and the memory of a kernel in use,
each with its target. On a busy machine only the ratios mean something: the pictures take turns, so that all
meet the same load.
"""
from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import nbformat
from jupyter_client import BlockingKernelClient
from jupyter_client.manager import start_new_kernel

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "browser")]

from lab import NotebookPage, chromium, find_chromium, jupyterlab  # noqa: E402
from places import NOTEBOOKS  # noqa: E402

HEADS = (1, 2, 3, 4, 6, 8, 12, 16)  # what the slider of h offers at d_model = 48; it starts at 4
SWEEPS = 4  # so often the slider goes from h = 4 to both ends and back; one sweep before them is not counted

EXPLORER = """
from multihead_lessons import lesson00

explorer = lesson00.heads_explorer()
slider = explorer.controls[1].slider
explorer
"""

# The usual way: `interactive` calls a function that makes a new figure. About half of its time goes into the
# ticks that Matplotlib puts on every map; without them the figure shows what the explorer shows and no more.
INTERACT = """
%matplotlib inline
TICKS = True

import matplotlib.pyplot as plt
from ipywidgets import SelectionSlider, interactive
from multihead_lessons import lesson00
from multihead_lessons.style import HEAD_COLORS

def draw(d_model, h):
    columns = min(h, 8)
    figure = plt.figure(figsize=(8.2, 3.9))
    grid = figure.add_gridspec(1 + -(-h // columns), columns, height_ratios=[0.4] + [1] * -(-h // columns))
    strip = figure.add_subplot(grid[0, :])
    strip.set_title(f"one projected vector: d_model = {d_model} numbers, each head takes {d_model // h}")
    strip.axis("off")
    for i, weights in enumerate(lesson00.head_maps(d_model, h)):
        color = HEAD_COLORS[i % len(HEAD_COLORS)]
        strip.barh(0, d_model // h, left=i * d_model // h, color=color, edgecolor="white")
        strip.text((i + 0.5) * d_model / h, 0, i + 1, ha="center", va="center", color="white")
        axes = figure.add_subplot(grid[1 + i // columns, i % columns])
        axes.imshow(weights, vmin=0, vmax=1)
        axes.set_title(f"head {i + 1}", fontsize=9)
        if not TICKS:
            axes.set(xticks=[], yticks=[])
    plt.show()

slider = SelectionSlider(options=lesson00.heads_on_offer({"d_model": 48}), value=4)
interactive(draw, d_model=SelectionSlider(options=lesson00.D_MODELS), h=slider)
"""

OURS = "explorer"
BARE = INTERACT.replace("TICKS = True", "TICKS = False")
SOURCES = {"interact": INTERACT, "interact, no ticks": BARE, OURS: EXPLORER}
Change = tuple[float, int]  # milliseconds to the new pixels, bytes sent meanwhile

# Starts the clock at the next key and stops it two frames after the new picture is on the page, decoded.
TIME_NEXT_KEY = """() => {
    const twoFrames = done => requestAnimationFrame(() => requestAnimationFrame(done));
    const isPicture = node => node.matches?.('svg, img');
    const pictureIn = node => isPicture(node) ? node : node.querySelector?.('svg, img');
    window.toTheEye = new Promise(resolve => addEventListener('keydown', () => {
        const start = performance.now();
        new MutationObserver(async (records, observer) => {
            const picture = records.flatMap(record => [...record.addedNodes]).map(pictureIn).find(Boolean);
            if (!picture) return;
            observer.disconnect();
            if (picture.decode) await picture.decode();
            twoFrames(() => resolve(performance.now() - start));
        }).observe(document.querySelector('.jp-Notebook'), {childList: true, subtree: true});
    }, {once: true, capture: true}));
}"""


def main() -> None:
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n")
    report_kernel(kernel_changes())
    report_eye(key_presses())
    report_memory()


# In the kernel

@contextmanager
def kernel() -> Iterator[BlockingKernelClient]:
    manager, client = start_new_kernel(kernel_name="python3", stderr=subprocess.DEVNULL)
    try:
        yield client
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def run(client: BlockingKernelClient, code: str) -> str:
    """Executes a cell and returns what it printed."""
    messages = []
    reply = client.execute_interactive(code, timeout=300, output_hook=messages.append)["content"]
    if reply["status"] != "ok":
        raise RuntimeError("\n".join(reply["traceback"]))
    return "".join(message["content"].get("text", "") for message in messages)


def kernel_changes() -> dict[str, dict[int, list[Change]]]:
    """The changes to each h, for each picture."""
    changes = {name: {h: [] for h in HEADS} for name in SOURCES}
    with ExitStack() as kernels:
        clients = {name: kernels.enter_context(kernel()) for name in SOURCES}
        for name, client in clients.items():
            run(client, SOURCES[name])
        sliders = {name: run(client, "print(slider.model_id)").strip() for name, client in clients.items()}
        for sweep in range(1 + SWEEPS):
            for name, client in clients.items():
                for index in positions():
                    change = move(client, sliders[name], index)
                    if sweep > 0:
                        changes[name][HEADS[index]].append(change)
    return changes


def positions() -> Iterator[int]:
    """Where the slider goes from h = 4: step by step to the one end, to the other, and back."""
    start, last = HEADS.index(4), len(HEADS) - 1
    yield from (*range(start + 1, last + 1), *range(last - 1, -1, -1), *range(1, start + 1))


def move(client: BlockingKernelClient, slider: str, index: int) -> Change:
    """Sends what JupyterLab sends when the slider moves, and waits for everything that comes back."""
    update = {"method": "update", "state": {"index": index}, "buffer_paths": []}
    message = client.session.msg("comm_msg", {"comm_id": slider, "data": update})
    elapsed, size = None, 0
    start = time.perf_counter()
    client.shell_channel.send(message)
    while True:
        answer = client.get_iopub_msg(timeout=60)
        if answer["parent_header"].get("msg_id") != message["header"]["msg_id"]:
            continue
        now, content = time.perf_counter(), answer["content"]
        size += len(json.dumps(content)) + sum(map(len, answer.get("buffers", ())))
        if answer["msg_type"] == "error":
            raise RuntimeError("\n".join(content["traceback"]))
        if has_pixels(content):
            elapsed = 1000 * (now - start)
        if content.get("execution_state") == "idle":
            if elapsed is None:
                raise RuntimeError(f"No new picture came for position {index} of the slider.")
            return elapsed, size


def has_pixels(content: dict) -> bool:
    data = content.get("data", {})
    return "image/png" in data or "<svg" in str(data.get("state", {}).get("value", ""))


def report_kernel(changes: dict[str, dict[int, list[Change]]]) -> None:
    print("In the kernel: from the slider's message to new pixels; ms, median for each h and for all")
    print(row("h", [*HEADS, "all", "p95"]))
    summaries = {}
    for name, by_h in changes.items():
        times = {h: [elapsed for elapsed, _ in by_h[h]] for h in HEADS}
        together = [elapsed for some in times.values() for elapsed in some]
        summaries[name] = [*map(statistics.median, (*times.values(), together)), p95(together)]
        print(row(name, [f"{value:.1f}" for value in summaries[name]]))
    for name, target in (("interact", "    target for all: 60 or more"), ("interact, no ticks", "")):
        ratios = [theirs / ours for theirs, ours in zip(summaries[name], summaries[OURS])]
        print(row(f"{name} / {OURS}", [f"{ratio:.0f}" for ratio in ratios]) + target)
    print("\nSent for one change, median kB for each h")
    for name, by_h in changes.items():
        print(row(name, [f"{statistics.median(size for _, size in by_h[h]) / 1000:.1f}" for h in HEADS]))
    print()


# In JupyterLab

def key_presses() -> dict[str, list[float]]:
    """Milliseconds from each arrow key on the slider of h to the new picture before the eye."""
    times = {name: [] for name in SOURCES}
    if (program := find_chromium()) is None:
        return times
    cells = [nbformat.v4.new_code_cell(source.strip()) for source in SOURCES.values()]
    kernelspec = {"name": "python3", "display_name": "Python 3"}
    with (tempfile.TemporaryDirectory() as folder, chromium(program) as browser,
          jupyterlab(Path(folder)) as address):
        notebook = nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernelspec})
        nbformat.write(notebook, Path(folder, "explorers.ipynb"))
        lab = NotebookPage(browser, address, "explorers.ipynb")
        lab.run_all()
        handles = {name: cell.locator(".noUi-handle").nth(1) for name, cell in zip(SOURCES, lab.cells.all())}
        for sweep in range(1 + SWEEPS):
            for name, handle in handles.items():
                position = HEADS.index(4)
                handle.focus()
                for index in positions():
                    elapsed = key_press(lab, "ArrowRight" if index > position else "ArrowLeft")
                    position = index
                    if sweep > 0:
                        times[name].append(elapsed)
        lab.close()
    return times


def key_press(lab: NotebookPage, key: str) -> float:
    lab.page.wait_for_timeout(150)  # the answer to the last key is over
    lab.page.evaluate(TIME_NEXT_KEY)
    lab.page.keyboard.press(key)
    return lab.evaluate("return await window.toTheEye")


def report_eye(times: dict[str, list[float]]) -> None:
    print("To the eye: from a key press in JupyterLab to the new picture, decoded and two frames later, ms")
    if not times[OURS]:
        print("No Chromium found: install it, or let the variable CHROMIUM name the program.\n")
        return
    print(row("", ["median", "p95", "ratio"]))
    ours = statistics.median(times[OURS])
    for name, some in times.items():
        median = statistics.median(some)
        target = "    target: 50 or less on a quiet machine" if name == OURS else ""
        print(row(name, [f"{median:.0f}", f"{p95(some):.0f}", f"{median / ours:.1f}"]) + target)
    print()


# Memory

def report_memory() -> None:
    print("Memory of a kernel that has run a lesson, above one that imported torch and matplotlib.pyplot; its peak in all; MB")
    if not Path("/proc/self/status").exists():
        print("Not measured: this system has no /proc.")
        return
    bare, _ = memory(["import torch, matplotlib.pyplot"])
    for path in NOTEBOOKS:
        cells = nbformat.read(path, as_version=4).cells
        after, peak = memory([cell.source for cell in cells if cell.cell_type == "code"])
        print(row(path.stem, [f"{after - bare:.0f}", f"{peak:.0f}"]),
              f"    targets: 60 or less above the bare kernel, which takes {bare:.0f}; peak 450 or less")


def memory(sources: Sequence[str]) -> tuple[float, float]:
    """(MB of a kernel after it executed these cells, the most that it took meanwhile)."""
    with kernel() as client:
        for source in sources:
            run(client, source)
        status = run(client, "print(open('/proc/self/status').read())")
    after, peak = (int(status.split(f"{name}:")[1].split()[0]) * 1024 / 1e6 for name in ("VmRSS", "VmHWM"))
    return after, peak


def p95(values: Sequence[float]) -> float:
    return statistics.quantiles(values, n=20)[-1]


def row(name: str, values: Sequence[object]) -> str:
    return f"  {name:30}" + "".join(f"{value:>8}" for value in values)


if __name__ == "__main__":
    main()
