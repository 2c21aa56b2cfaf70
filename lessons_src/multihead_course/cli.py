"""The `course` command."""
from __future__ import annotations

import argparse
import sys
from pathlib import Path

from multihead_course import build, collect, opening, release

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
