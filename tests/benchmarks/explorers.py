"""How fast the first explorer answers, against the same picture drawn with `interact` and Matplotlib.

    python tests/benchmarks/explorers.py

Prints milliseconds in the kernel, milliseconds to the eye in JupyterLab, and the memory of a learner's kernel, each with
its target. On a busy machine only the ratios mean something.
"""
from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import nbformat
from jupyter_client import BlockingKernelClient
from jupyter_client.manager import start_new_kernel

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "browser")]

from lab import NotebookPage, chromium, find_chromium, jupyterlab  # noqa: E402
from places import NOTEBOOKS  # noqa: E402

HEADS = (1, 2, 3, 4, 6, 8, 12, 16)  # what the slider of h offers at d_model = 48; it starts at 4
SWEEPS = 4                          # the slider goes to one end and back, so often; a first sweep is not counted

EXPLORER = """
from multihead_lessons import lesson00

explorer = lesson00.heads_explorer()
slider = explorer.controls[1].slider
explorer
"""

# The usual way: `interact` calls a function that makes a new figure.
INTERACT = """
%matplotlib inline
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
        axes.set(xticks=[], yticks=[])
    plt.show()

slider = SelectionSlider(options=lesson00.heads_on_offer({"d_model": 48}), value=4)
interactive(draw, d_model=SelectionSlider(options=lesson00.D_MODELS), h=slider)
"""

# Starts the clock at the next key and stops it two frames after the new picture is on the page, decoded.
TIME_NEXT_KEY = """() => {
    const twoFrames = done => requestAnimationFrame(() => requestAnimationFrame(done));
    const pictureIn = node => node.nodeType === 1 && (node.matches('svg, img') ? node : node.querySelector('svg, img'));
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
    report_kernel({name: kernel_changes(source) for name, source in (("interact", INTERACT), ("explorer", EXPLORER))})
    report_eye({name: key_presses(source) for name, source in (("interact", INTERACT), ("explorer", EXPLORER))})
    report_memory()


# In the kernel

@contextmanager
def kernel() -> Iterator[BlockingKernelClient]:
    manager, client = start_new_kernel(kernel_name="python3")
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


def kernel_changes(source: str) -> dict[int, list[tuple[float, int]]]:
    """For each h, milliseconds from the slider's message to new pixels, and the bytes sent meanwhile."""
    changes: dict[int, list[tuple[float, int]]] = {h: [] for h in HEADS}
    with kernel() as client:
        run(client, source)
        slider = run(client, "print(slider.model_id)").strip()
        for sweep in range(-1, SWEEPS):
            for index in turns():
                change = move(client, slider, index)
                if sweep >= 0:
                    changes[HEADS[index]].append(change)
    return changes


def turns() -> Iterator[int]:
    """Positions of the slider from the start at h = 4 to the one end, to the other, and back; no position twice in a row."""
    start, last = HEADS.index(4), len(HEADS) - 1
    yield from (*range(start + 1, last + 1), *range(last - 1, -1, -1), *range(1, start + 1))


def move(client: BlockingKernelClient, slider: str, index: int) -> tuple[float, int]:
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


def report_kernel(changes: dict[str, dict[int, list[tuple[float, int]]]]) -> None:
    print("In the kernel: from the slider's message to new pixels, ms")
    print(row("h", [*HEADS, "all", "p95"]))
    medians = {}
    for name, by_h in changes.items():
        times = {h: [elapsed for elapsed, _ in pairs] for h, pairs in by_h.items()}
        together = [elapsed for some in times.values() for elapsed in some]
        medians[name] = [*(statistics.median(times[h]) for h in HEADS), statistics.median(together), p95(together)]
        print(row(name, [f"{value:.1f}" for value in medians[name]]))
    ratios = [slow / fast for slow, fast in zip(medians["interact"], medians["explorer"])]
    print(row("times faster", [f"{ratio:.0f}" for ratio in ratios]), "    target for all: 60 or more\n")
    print("Sent for one change, kB")
    for name, by_h in changes.items():
        print(row(name, [f"{statistics.median(size for _, size in by_h[h]) / 1000:.1f}" for h in HEADS]))
    print()


# In JupyterLab

def key_presses(source: str) -> list[float]:
    """Milliseconds from an arrow key on the slider of h to the new picture before the eye."""
    program = find_chromium()
    if program is None:
        return []
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source.strip())])
    with tempfile.TemporaryDirectory() as folder, chromium(program) as browser, jupyterlab(Path(folder)) as address:
        nbformat.write(notebook, Path(folder, "explorer.ipynb"))
        lab = NotebookPage(browser, address, "explorer.ipynb")
        lab.run_all()
        lab.page.locator(".noUi-handle").nth(1).focus()
        times, position = [], HEADS.index(4)
        for sweep in range(-1, SWEEPS - 1):
            for index in turns():
                lab.page.wait_for_timeout(150)  # the answer to the last key is over
                lab.page.evaluate(TIME_NEXT_KEY)
                lab.page.keyboard.press("ArrowRight" if index > position else "ArrowLeft")
                elapsed, position = lab.evaluate("return await window.toTheEye"), index
                if sweep >= 0:
                    times.append(elapsed)
        lab.close()
    return times


def report_eye(times: dict[str, list[float]]) -> None:
    print("To the eye: from a key press in JupyterLab to the new picture, decoded and two frames later, ms")
    if not times["explorer"]:
        print("No Chromium found: install it, or let the variable CHROMIUM name the program.\n")
        return
    print(row("", ["median", "p95"]))
    for name, some in times.items():
        target = "    target: 50 or less on a quiet machine" if name == "explorer" else ""
        print(row(name, [f"{statistics.median(some):.0f}", f"{p95(some):.0f}"]) + target)
    print(row("times faster", [f"{statistics.median(times['interact']) / statistics.median(times['explorer']):.1f}"]), "\n")


# Memory

def report_memory() -> None:
    print("Memory of a kernel that has run a lesson, above one that imported torch and matplotlib.pyplot, MB")
    if not Path("/proc/self/status").exists():
        print("Not measured: this system has no /proc.")
        return
    bare = resident_memory(["import torch, matplotlib.pyplot"])
    for path in NOTEBOOKS:
        cells = nbformat.read(path, as_version=4).cells
        above = resident_memory([cell.source for cell in cells if cell.cell_type == "code"]) - bare
        print(row(path.stem, [f"{above:.0f}"]), f"    target: 60 or less; the bare kernel takes {bare:.0f}")


def resident_memory(sources: Sequence[str]) -> float:
    """MB of a kernel after it executed these cells."""
    with kernel() as client:
        for source in sources:
            run(client, source)
        status = run(client, "print(open('/proc/self/status').read())")
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def p95(values: Sequence[float]) -> float:
    return statistics.quantiles(values, n=20)[-1]


def row(name: str, values: Sequence[object]) -> str:
    return f"  {name:22}" + "".join(f"{value:>8}" for value in values)


if __name__ == "__main__":
    main()
