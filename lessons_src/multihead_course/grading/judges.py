"""The judges: processes that hold the exercises, each with one submission at a time."""
from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path

from multihead_course.grading.handed_in import Released
from multihead_course.grading.marks import Record

PATIENCE = 600.0  # seconds after which a judge is taken to be stuck
EXERCISES = Path(__file__).resolve().parents[2] / "multihead_lessons" / "exercises"


@dataclass(frozen=True)
class Task:
    """One submission."""

    student: str
    lesson: str
    folder: Path
    digest: str


class Judges:
    """A context manager. A judge that dies or sticks is replaced; its submission is left for a person."""

    def __init__(self, count: int, *about: object):
        """`about` is what `judge.serve` takes after the line to it."""
        self.about, self.count = about, count
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(["multihead_course.grading.judge", *_lessons()])
        self.lines: dict[Connection, multiprocessing.process.BaseProcess] = {}

    def __enter__(self) -> Judges:
        for _ in range(self.count):
            self._start()
        return self

    def __exit__(self, *_: object) -> None:
        for line in list(self.lines):
            self._end(line)

    def _start(self) -> Connection:
        line, other = self.context.Pipe()
        process = self.context.Process(target=_serve, args=(other, *self.about), daemon=True)
        process.start()
        other.close()
        self.lines[line] = process
        return line

    def _end(self, line: Connection) -> None:
        process = self.lines.pop(line)
        process.kill()
        process.join()
        line.close()

    def judge(self, tasks: Sequence[Task]) -> Iterator[tuple[Task, Record]]:
        """Each task with its record, in the order in which they are done."""
        waiting, busy = list(reversed(tasks)), {}
        for line in list(self.lines)[:len(waiting)]:
            self._give(line, waiting.pop(), busy)
        while busy:
            ready, late = wait(list(busy), timeout=1.0), time.monotonic() - PATIENCE
            for line in ready or [line for line, (_, since) in busy.items() if since < late]:
                task, _ = busy.pop(line)
                try:
                    record = line.recv() if ready else None
                except (EOFError, OSError):
                    record = None
                if isinstance(record, str):
                    raise ValueError(record)
                if record is None:
                    self._end(line)
                    line = self._start()
                    record = _left_for_a_person(self.about[2][task.lesson])
                if waiting:
                    self._give(line, waiting.pop(), busy)
                yield task, record

    def _give(self, line: Connection, task: Task, busy: dict[Connection, tuple[Task, float]]) -> None:
        line.send((task.folder, task.lesson))
        busy[line] = task, time.monotonic()


def _lessons() -> list[str]:
    return [f"multihead_lessons.exercises.{path.stem}" for path in sorted(EXERCISES.glob("lesson*.py"))]


def _serve(*line_and_about: object) -> None:
    from multihead_course.grading.judge import serve  # loads torch; so not where the judges are started

    serve(*line_and_about)


def _left_for_a_person(release: Released) -> Record:
    from multihead_course.grading.judge import for_a_person

    reason = "the grader itself stopped here. Grade again; if it stops again, read it."
    record = for_a_person(release, "", reason)
    record.digest = "to be graded again"
    return record
