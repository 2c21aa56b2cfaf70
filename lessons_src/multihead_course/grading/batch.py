"""A course folder into marks: `course grade`.

The work is shared out to judges, processes that hold the exercises; one forking process serves them all. What
has been graded and has not changed is not graded again, so a run that was stopped goes on where it was.
"""
from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from multihead_course.grading import handed_in, sandbox
from multihead_course.grading.handed_in import Released
from multihead_course.grading.judges import Judges, Task
from multihead_course.grading.marks import Marks, changes
from multihead_course.release import released

SAVE_EVERY = 5.0  # seconds
SAY_EVERY = 2.0   # seconds
PACKAGES = Path(__file__).resolve().parents[2]
ENGINE = ("forking", "handed_in", "judge", "remote", "sandbox", "wire", "worker")
JUDGED_BY = ("multihead",
             *(f"multihead_lessons/{name}" for name in ("exercises", "running.py", "calling.py")),
             *(f"multihead_course/grading/{name}.py" for name in ENGINE))


def grade(course: Path, out: Path, *, jobs: int | None = None, lessons: Sequence[str] = (),
          compare: Path | None = None, unguarded: bool = False, limits: sandbox.Limits = sandbox.Limits(),
          say: Callable[[str], None] = print) -> Marks:
    """Grades what is in COURSE/submitted into the folder of marks `out`, and says how far it is.

    jobs:      submissions at the same time; default: one for each processor
    lessons:   default: all that were released
    compare:   an older folder of marks; what differs is said at the end
    unguarded: grade even where a guard does not hold

    Raises ValueError where nothing was released, and where the guards do not hold.
    """
    if sentence := sandbox.supported():
        raise ValueError(sentence)
    if jobs is not None and jobs < 1:
        raise ValueError(f"--jobs {jobs} would grade nothing; it must be at least 1.")
    before = Marks.existing(compare) if compare else None
    marks, parts = Marks(out), _released(course, lessons)
    tasks = list(_tasks(course, parts))
    _forget_the_gone(marks, tasks, parts)
    todo = [task for task in tasks if not _is_done(marks, task)]
    say(f"{len(tasks)} submissions, {len(tasks) - len(todo)} of them graded before")
    marks.lessons.update({lesson: _about(release) for lesson, release in parts.items()})
    try:
        if todo:
            hidden = course.resolve(), out.resolve()
            _grade(todo, marks, parts, hidden, jobs or os.cpu_count() or 1, limits, unguarded, say)
    finally:
        marks.save()
    differing = (changes(before, marks) or ["nothing differs from the marks compared"]) if before else []
    for sentence in [*_summary(marks), *differing]:
        say(sentence)
    return marks


def _released(course: Path, wanted: Sequence[str]) -> dict[str, Released]:
    there = released(course)
    if not there:
        raise ValueError(f"{course} has no release/LESSON/LESSON.ipynb; make it with course release.")
    if unknown := sorted(set(wanted) - set(there)):
        raise ValueError(f"'{unknown[0]}' was not released in {course}; there are {', '.join(there)}.")
    return {lesson: handed_in.released(_release(course, lesson)) for lesson in wanted or there}


def _release(course: Path, lesson: str) -> Path:
    return course / "release" / lesson / f"{lesson}.ipynb"


def _tasks(course: Path, parts: Mapping[str, Released]) -> Iterator[Task]:
    ours = _engine_digest()
    for lesson in parts:
        release = _release(course, lesson).read_bytes()
        for folder in sorted(course.glob(f"submitted/*/{lesson}")):
            notebooks = sorted(folder.rglob("*.ipynb"))
            pieces = [ours, release, *(piece for path in notebooks for piece in _identity(folder, path))]
            yield Task(folder.parent.name, lesson, folder, hashlib.sha256(b"\0".join(pieces)).hexdigest())


def _engine_digest() -> bytes:
    """Of everything that judges: when a misconception gets a better sentence, all are graded again."""
    hashed = hashlib.sha256()
    for name in JUDGED_BY:
        place = PACKAGES / name
        for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            hashed.update(path.read_bytes())
    return hashed.digest()


def _identity(folder: Path, path: Path) -> Iterator[bytes]:
    about = path.lstat()
    yield str(path.relative_to(folder)).encode("utf-8", "surrogateescape")
    if stat.S_ISREG(about.st_mode) and about.st_size <= handed_in.MAX_BYTES:
        yield hashlib.sha256(path.read_bytes()).digest()
    else:
        yield f"{about.st_mode} {about.st_size}".encode()


def _is_done(marks: Marks, task: Task) -> bool:
    record = marks.students.get(task.student, {}).get(task.lesson)
    return record is not None and record.digest == task.digest


def _forget_the_gone(marks: Marks, tasks: Sequence[Task], parts: Mapping[str, Released]) -> None:
    there = {(task.student, task.lesson) for task in tasks}
    for student, lesson, _ in list(marks.records()):
        if lesson in parts and (student, lesson) not in there:
            del marks.students[student][lesson]
    marks.students = {student: records for student, records in marks.students.items() if records}


def _about(release: Released) -> dict[str, dict]:
    return {name: {"kind": kind, "max_points": part.points, "heading": part.heading}
            for kind, parts in (("exercise", release.exercises), ("question", release.questions))
            for name, part in parts.items()}


def _grade(todo: Sequence[Task], marks: Marks, parts: Mapping[str, Released], hidden: Sequence[Path],
           jobs: int, limits: sandbox.Limits, unguarded: bool, say: Callable[[str], None]) -> None:
    from multihead_course.grading.forking import ForkingProcess  # loads torch, which takes a while

    seeds = {lesson: marks.seed(lesson) for lesson in parts}
    with (ForkingProcess(hidden, limits) as forking,
          Judges(min(jobs, len(todo)), forking.control, limits, parts, seeds) as judges):
        marks.guards = forking.guards()
        say(_about_guards(marks.guards, unguarded))
        saved = said = started = time.monotonic()
        for done, (task, record) in enumerate(judges.judge(todo), 1):
            record.digest = record.digest or task.digest
            marks.students.setdefault(task.student, {})[task.lesson] = record
            now = time.monotonic()
            if done == 1:  # before that, everything had to start
                started = now
            if now - said > SAY_EVERY or done == len(todo):
                said = now
                left = (now - started) / max(done - 1, 1) * (len(todo) - done)
                say(f"graded {done} of {len(todo)}" + (f", about {round(left)} s left" if done > 1 else ""))
            if now - saved > SAVE_EVERY:
                marks.save()
                saved = time.monotonic()


def _about_guards(held: Sequence[str], unguarded: bool) -> str:
    missing = [name for name in sandbox.GUARDS if name not in held]
    if not missing:
        return f"guards that held when they were tried: {', '.join(held)}"
    if unguarded:
        return f"GRADING WITHOUT {' AND '.join(missing).upper()}: students' code is not held back there."
    what = "; ".join(f"{name} (a submission {sandbox.GUARDS[name]})" for name in missing)
    raise ValueError(f"on this system these guards do not hold: {what}. Grade on Linux 5.13 or later, not "
                     "in a container that forbids Landlock or seccomp. To grade all the same, because you "
                     "trust the students or the machine is there for nothing else, add --unguarded.")


def _summary(marks: Marks) -> list[str]:
    states: dict[str, int] = {}
    for _, _, record in marks.records():
        for _, mark in record.marks():
            states[mark.state] = states.get(mark.state, 0) + 1
    counts = [f"{count} {state}" for state, count in sorted(states.items(), key=lambda item: -item[1])]
    nothing = "nothing was handed in; put notebooks into submitted/ with course collect"
    return [*marks.for_a_person(), ", ".join(counts) or nothing]
