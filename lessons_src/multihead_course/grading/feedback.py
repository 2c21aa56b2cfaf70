"""What each student reads: one page and one text, made from the marks alone. `course feedback`."""
from __future__ import annotations

import html
from collections.abc import Iterator
from pathlib import Path

from multihead_course.grading.marks import (
    BY_HAND, FAILED, NEEDS_A_PERSON, NOT_ATTEMPTED, PASSED, Mark, Marks, Record, number, write,
)

SIGN = {PASSED: "✓", FAILED: "✗", NOT_ATTEMPTED: "○", BY_HAND: "…", NEEDS_A_PERSON: "?"}
IN_WORDS = {PASSED: "right", FAILED: "not right yet", NOT_ATTEMPTED: "not attempted",
            BY_HAND: "read by a person", NEEDS_A_PERSON: "to be looked at by a person"}
PAGE = """<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 16px/1.5 system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif; }}
body {{ max-width: 44em; margin: 2em auto; padding: 0 1em; }}
h2 {{ margin: 2em 0 0.5em; }}
section {{ border-left: 4px solid #8b949e; margin: 1em 0; padding: 0.1em 1em; }}
section.passed {{ border-color: #1a7f37; }}
section.failed {{ border-color: #bc4c00; }}
h3 {{ font-size: 1em; margin: 0.5em 0; }}
p {{ margin: 0.5em 0; overflow-wrap: anywhere; }}
</style>
<body>
<h1>{title}</h1>
{body}
</body>
</html>
"""


def feedback(folder: Path) -> list[Path]:
    """Writes FOLDER/feedback/STUDENT.html and .txt for every student; removes those of nobody."""
    marks = Marks.existing(folder)
    written = []
    for student, records in sorted(marks.students.items()):
        parts = [(lesson, record, marks.lessons[lesson]) for lesson, record in sorted(records.items())]
        title = f"Feedback for {student}"
        for ending, text in (("html", _page(title, parts)), ("txt", _text(title, parts))):
            written.append(folder / "feedback" / f"{student}.{ending}")
            write(written[-1], text)
    for path in (folder / "feedback").glob("*.*"):
        if path.suffix in (".html", ".txt") and path not in written:
            path.unlink()
    return written


Parts = list[tuple[str, Record, dict[str, dict]]]


def _page(title: str, parts: Parts) -> str:
    body = []
    for lesson, record, about in parts:
        body.append(f"<h2>{_escaped(_lesson(lesson))}</h2>\n<p>{_escaped(_total(record))}</p>")
        for name, mark in record.marks():
            kind, sign, verdict = mark.state.replace(" ", "-"), SIGN[mark.state], _escaped(_verdict(mark))
            heading = f"<h3>{sign} <code>{_escaped(name)}</code>: {verdict}</h3>"
            lines = [f"<p>{_escaped(line)}</p>" for line in _lines(lesson, name, mark, about)]
            body.append("\n".join([f'<section class="{_escaped(kind)}">', heading, *lines, "</section>"]))
    return PAGE.format(title=_escaped(title), body="\n".join(body))


def _text(title: str, parts: Parts) -> str:
    lines = [title]
    for lesson, record, about in parts:
        lines += ["", _lesson(lesson), _total(record)]
        for name, mark in record.marks():
            lines += ["", f"{SIGN[mark.state]} {name}: {_verdict(mark)}"]
            lines += [f"  {line}" for line in _lines(lesson, name, mark, about)]
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return html.escape(text, quote=True)


def _lesson(lesson: str) -> str:
    return f"Lesson {lesson.replace('_', ' ')}"


def _total(record: Record) -> str:
    marks = [mark for _, mark in record.marks()]
    got = sum(mark.points for mark in marks if mark.settled)
    out_of = sum(mark.max_points for mark in marks if mark.settled)
    open_points = sum(mark.max_points for mark in marks if not mark.settled)
    later = f" {number(open_points)} more are still to be given by a person." if open_points else ""
    return f"{number(got)} of {number(out_of)} points so far.{later}"


def _verdict(mark: Mark) -> str:
    most = number(mark.max_points)
    points = f"{number(mark.points)} of {most}" if mark.settled else f"worth {most}"
    return f"{IN_WORDS[mark.state]}, {points} points"


def _lines(lesson: str, name: str, mark: Mark, about: dict[str, dict]) -> Iterator[str]:
    """What was found, and where to look next."""
    if mark.state != PASSED or mark.message != "passed.":
        yield mark.message[:1].upper() + mark.message[1:]
    if mark.state in (FAILED, NOT_ATTEMPTED):
        section = about.get(name, {}).get("heading", "").replace("`", "")
        yield (f"Look at “{section}” in {_lesson(lesson).lower()}, and at the hints below it." if section
               else f"Look at {_lesson(lesson).lower()} again.")
