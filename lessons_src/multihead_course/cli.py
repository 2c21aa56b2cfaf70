"""The `course` command."""
from __future__ import annotations

import argparse
import sys
from pathlib import Path

from multihead_course import build, collect, opening, release
from multihead_course.grading import feedback, report
from multihead_course.grading.export import FORMATS, export

ROOT = Path(__file__).resolve().parents[2]


def main(arguments: list[str] | None = None) -> int:
    """Runs one command; returns the exit status. A refusal is one sentence on stderr and status 1."""
    options = _parser().parse_args(arguments)
    try:
        return options.run(options)
    except ValueError as error:
        print(f"course {options.command}: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="course", description="Multi-Head Attention, Part 1: open and build the course.")
    commands = parser.add_subparsers(dest="command", required=True)

    command = commands.add_parser("open", help="open the course in JupyterLab; your copies are in my_work/")
    command.add_argument("--into", type=Path, default=ROOT / "my_work", metavar="DIR", help="where your copies are kept")
    command.add_argument("jupyter", nargs="*", metavar="-- OPTION", help="options for JupyterLab, after --")
    command.set_defaults(run=lambda options: opening.open_course(ROOT / "notebooks", options.into, options.jupyter))

    command = commands.add_parser("build", help="make the notebooks from lessons_src/lessons")
    command.add_argument("--edition", choices=build.EDITIONS, default="learner")
    command.add_argument("--out", type=Path, metavar="DIR", help="default for the learner edition: notebooks/")
    command.add_argument("--check", action="store_true", help="write nothing; fail if a build would change anything")
    command.set_defaults(run=_build)

    command = commands.add_parser("release", help="make homework of lessons: an nbgrader course folder")
    command.add_argument("lessons", nargs="+", metavar="LESSON", help="03, 03_the_4d_pipeline, or a path")
    command.add_argument("--out", type=Path, required=True, metavar="DIR", help="the course folder")
    command.set_defaults(run=lambda options: release.release(ROOT, options.lessons, options.out) or 0)

    command = commands.add_parser("collect", help="put what students handed in into a course folder")
    command.add_argument("place", type=Path, metavar="ZIP_OR_FOLDER", help="from Canvas, Moodle or nbgrader's exchange")
    command.add_argument("--into", type=Path, required=True, metavar="COURSE", help="the course folder")
    command.add_argument("--roster", type=Path, metavar="CSV", help="who should hand in")
    command.set_defaults(run=_collect)

    command = commands.add_parser("grade", help="mark what was handed in, behind guards")
    command.add_argument("course", type=Path, metavar="COURSE", help="the course folder")
    command.add_argument("--out", type=Path, required=True, metavar="MARKS", help="the folder of marks; run again to go on")
    command.add_argument("--jobs", type=int, metavar="N", help="submissions at the same time; default: one for each processor")
    command.add_argument("--lesson", action="append", default=[], metavar="LESSON", help="only this one; can be repeated")
    command.add_argument("--compare", type=Path, metavar="MARKS", help="older marks: list what differs")
    command.add_argument("--unguarded", action="store_true", help="grade even where this system cannot hold students' code back")
    command.set_defaults(run=_grade)

    command = commands.add_parser("feedback", help="a page and a text for each student")
    command.add_argument("marks", type=Path, metavar="MARKS")
    command.set_defaults(run=_feedback)

    command = commands.add_parser("export", help="marks for Canvas, Moodle, nbgrader, or as plain CSV or JSON")
    command.add_argument("marks", type=Path, metavar="MARKS")
    command.add_argument("--to", choices=FORMATS, default="plain")
    command.add_argument("--roster", type=Path, metavar="CSV", help="the students, as Canvas or Moodle exports them")
    command.add_argument("--course", type=Path, metavar="COURSE", help="for nbgrader: the course folder")
    command.add_argument("--out", type=Path, metavar="FILE", help="default: MARKS/export/...")
    command.set_defaults(run=_export)

    command = commands.add_parser("report", help="the class at a glance: who passed, which mistakes")
    command.add_argument("marks", type=Path, metavar="MARKS")
    command.set_defaults(run=_report)

    command = commands.add_parser("doctor", help="is this machine, and a course folder, ready for homework?")
    command.add_argument("course", nargs="?", type=Path, metavar="COURSE", help="the course folder")
    command.set_defaults(run=_doctor)

    command = commands.add_parser("poster", help="save the poster as PNG and SVG")
    command.add_argument("--out", type=Path, default=Path("."), metavar="DIR")
    command.set_defaults(run=_poster)
    return parser


def _build(options: argparse.Namespace) -> int:
    out = options.out or (ROOT / "notebooks" if options.edition == "learner" else None)
    if out is None:
        raise ValueError(f"the {options.edition} edition needs --out DIR; notebooks/ holds the learner edition.")
    if not options.check:
        build.build(ROOT, out, options.edition)
        return 0
    sentences = build.stale(ROOT, out, options.edition)
    print("\n".join(sentences) or f"{out.name}/ is what course build makes.")
    return 1 if sentences else 0


def _collect(options: argparse.Namespace) -> int:
    print("\n".join(collect.collect(options.place, options.into, options.roster)))
    return 0


def _grade(options: argparse.Namespace) -> int:
    from multihead_course.grading.batch import grade  # needs modules that only some systems have

    grade(options.course, options.out, jobs=options.jobs, lessons=options.lesson, compare=options.compare,
          unguarded=options.unguarded, say=lambda sentence: print(sentence, flush=True))
    return 0


def _feedback(options: argparse.Namespace) -> int:
    written = feedback.feedback(options.marks)
    print(f"{len(written)} files in {options.marks / 'feedback'}")
    return 0


def _export(options: argparse.Namespace) -> int:
    if options.to == "nbgrader":
        from multihead_course.grading.gradebook import hand_over  # needs nbgrader, which is not required otherwise

        if options.course is None:
            raise ValueError("nbgrader's gradebook is in the course folder; add --course COURSE.")
        print("\n".join(hand_over(options.marks, options.course)))
        return 0
    path, sentences = export(options.marks, options.to, options.roster, options.out)
    print("\n".join([*sentences, str(path)]))
    return 0


def _report(options: argparse.Namespace) -> int:
    table, paths = report.report(options.marks)
    print(table + "\n".join(map(str, paths)))
    return 0


def _doctor(options: argparse.Namespace) -> int:
    from multihead_course.doctor import doctor  # loads torch, which no other command needs

    failed = 0
    for finding in doctor(ROOT, options.course):
        print(f"{finding.level:5}{finding.sentence}", flush=True)
        failed += finding.level == "FIX"
    print(f"{failed or 'nothing'} to put right.")
    return 1 if failed else 0


def _poster(options: argparse.Namespace) -> int:
    from multihead_lessons.poster import save_poster  # loads Matplotlib, which no other command needs

    for path in save_poster(options.out):
        print(path)
    return 0
