"""How fast a class is marked, against `nbgrader autograde` on the same submissions.

    python tests/benchmarks/grading.py [SUBMISSIONS]

Prints submissions per second of both, the time for a quarter, half and all of a class of 1000 with feedback,
and the memory that all processes of the grader take together, each with its target. The two graders take
turns, so that both meet the same load; on a busy machine only the ratio means something.
"""
from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "multihead_course" / "grading")]

from submissions import LESSON, course_folder, hand_in, honest  # noqa: E402

from multihead_course.grading.batch import grade  # noqa: E402
from multihead_course.grading.feedback import feedback  # noqa: E402

TURNS, THEIRS, OURS = 2, 4, 200  # how often each grades, and how many submissions each time
TARGETS = {"ratio": 35, "seconds": 120}


def main(size: int = 1000) -> None:
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n")
    with tempfile.TemporaryDirectory() as folder:
        report_ratio(Path(folder))
        report_class(Path(folder), size)


def course_of(folder: Path, size: int) -> Path:
    """A course folder with so many submissions, the forty honest ones again and again."""
    course = course_folder(folder)
    notebooks = [notebook for notebook, _ in honest().values()]
    for i in range(size):
        hand_in(course, f"student{i:04}", notebooks[i % len(notebooks)])
    return course


def ours(course: Path, marks: Path) -> float:
    """Seconds from the command to the last student's feedback."""
    start = time.perf_counter()
    grade(course, marks, say=lambda sentence: None)
    feedback(marks)
    return time.perf_counter() - start


def theirs(course: Path) -> float:
    """Seconds of `nbgrader autograde`, which gives no feedback yet."""
    start = time.perf_counter()
    nbgrader(course, "autograde", LESSON, "--force")
    return time.perf_counter() - start


def nbgrader(course: Path, *arguments: str) -> None:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    subprocess.run(["nbgrader", *arguments], cwd=course, env=environment, check=True, capture_output=True)


def report_ratio(folder: Path) -> None:
    small, large = course_of(folder / "small", THEIRS), course_of(folder / "large", OURS)
    nbgrader(small, "generate_assignment", LESSON, "--create", "--force")
    rates = {"nbgrader autograde": [], "course grade and feedback": []}
    for turn in range(TURNS):
        rates["nbgrader autograde"].append(THEIRS / theirs(small))
        rates["course grade and feedback"].append(OURS / ours(large, folder / f"turn{turn}"))
    print("Submissions per second, start-up included")
    means = {name: sum(some) / len(some) for name, some in rates.items()}
    for name, rate in means.items():
        print(f"  {name:30}{rate:8.2f}")
    their_rate, our_rate = means.values()
    print(f"  {'ratio':30}{our_rate / their_rate:8.0f}    target: {TARGETS['ratio']} or more\n")


def report_class(folder: Path, size: int) -> None:
    print(f"A class, with feedback{'':10}seconds   ms each   peak memory of all processes, MB")
    for part in (size // 4, size // 2, size):
        course = course_of(folder / f"course{part}", part)
        seconds, memory = watched(lambda: ours(course, folder / f"marks{part}"))
        target = f"    target: {TARGETS['seconds']} s or less for 1000 on 2 cores" if part == 1000 else ""
        print(f"  {part:<30}{seconds:8.1f}{1000 * seconds / part:10.1f}{memory:10.0f}{target}")
        shutil.rmtree(course)


def watched(action: Callable[[], float]) -> tuple[float, float]:
    """What `action` returns, and the most memory in MB that this process and all below it took meanwhile."""
    over, most = threading.Event(), [0.0]

    def look() -> None:
        while not over.wait(0.5):
            most[0] = max(most[0], sum(map(memory_of, descendants(os.getpid()))))
    thread = threading.Thread(target=look)
    thread.start()
    try:
        return action(), most[0]
    finally:
        over.set()
        thread.join()


def descendants(process: int) -> list[int]:
    try:
        lists = [(task / "children").read_text() for task in Path(f"/proc/{process}/task").iterdir()]
    except OSError:  # it has ended
        return []
    children = [int(word) for line in lists for word in line.split()]
    return [process, *(other for child in children for other in descendants(child))]


def memory_of(process: int) -> float:
    """MB; what several processes share counts once."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:")), 0.0)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
