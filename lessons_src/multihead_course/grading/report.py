"""The class at a glance, for the next lecture: `course report`."""
from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from multihead_course.grading.marks import FAILED, NEEDS_A_PERSON, NOT_ATTEMPTED, PASSED, Marks, write

SHOWN = 5  # misconceptions in the picture, of each exercise


@dataclass
class Row:
    """One exercise: how many students are in which state, and how many made which mistake."""

    lesson: str
    exercise: str
    states: Counter[str] = field(default_factory=Counter)
    misconceptions: Counter[str] = field(default_factory=Counter)

    @property
    def handed_in(self) -> int:
        return sum(self.states.values())

    @property
    def share(self) -> float:
        """Of those who handed in, the share that passed."""
        return self.states[PASSED] / self.handed_in if self.handed_in else 0.0


def rows(marks: Marks) -> list[Row]:
    """One row for each exercise, in the order of the lessons."""
    found = {(lesson, name): Row(lesson, name) for lesson in sorted(marks.lessons)
             for name, about in marks.lessons[lesson].items() if about["kind"] == "exercise"}
    for _, lesson, record in marks.records():
        for name, mark in record.exercises.items():
            row = found[lesson, name]
            row.states[mark.state] += 1
            if mark.misconception:
                row.misconceptions.update(mark.misconception.split("+"))
    return list(found.values())


def report(folder: Path) -> tuple[str, list[Path]]:
    """The table as text, and the files that hold it and the picture: report.txt, report.png, report.svg."""
    marks = Marks.existing(folder)
    table = _table(rows(marks), marks.guards)
    write(folder / "report.txt", table)
    return table, [folder / "report.txt", *_save_picture(rows(marks), folder)]


def _table(found: list[Row], guards: list[str]) -> str:
    lines = [f"{'exercise':44} {'passed':>12} {'failed':>7} {'not attempted':>14} {'needs a person':>15}"]
    others = ((FAILED, 7), (NOT_ATTEMPTED, 14), (NEEDS_A_PERSON, 15))
    for row in found:
        passed = f"{row.states[PASSED]} ({round(100 * row.share)} %)"
        counts = " ".join(f"{row.states[state]:>{width}}" for state, width in others)
        lines.append(f"{row.lesson + ' / ' + row.exercise:44} {passed:>12} {counts}")
        lines += [f"    {count:>4} {'student' if count == 1 else 'students'}: {name}"
                  for name, count in row.misconceptions.most_common()]
    lines += ["", f"Guards that held while this was graded: {', '.join(guards) or 'none'}."]
    return "\n".join(lines) + "\n"


def _save_picture(found: list[Row], folder: Path) -> list[Path]:
    """Each exercise as a bar of 100 %, and under it the commonest mistakes as bars on the same scale."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    from multihead_lessons.style import HEAD_COLORS

    bars = []  # (label, share, color, words)
    for row in found:
        words = f"{round(100 * row.share)} % passed ({row.states[PASSED]} of {row.handed_in})"
        bars.append((row.exercise, row.share, HEAD_COLORS[1], words))
        bars += [(f"{name}  ", count / max(row.handed_in, 1), HEAD_COLORS[3], f"{count}")
                 for name, count in row.misconceptions.most_common(SHOWN)]
    figure = Figure(figsize=(10, 1.2 + 0.38 * len(bars)), facecolor="white", layout="constrained")
    ax = figure.add_subplot(xlim=(0, 1), ylim=(len(bars) - 0.4, -0.6))
    for place, (_, share, color, words) in enumerate(bars):
        ax.barh(place, 1, height=0.7, color="#eef0f2")
        ax.barh(place, share, height=0.7, color=color)
        ax.text(min(share, 0.7) + 0.01, place, words, va="center", fontsize=11, color="black")
    ax.set_yticks(range(len(bars)), [label for label, *_ in bars], fontsize=11)
    for label, (_, _, color, _) in zip(ax.get_yticklabels(), bars):
        label.set_fontweight("bold" if color == HEAD_COLORS[1] else "normal")
    ax.set_xticks([])
    ax.spines[:].set_visible(False)
    ax.set_title("Who passed, and the commonest mistakes by number of students", fontsize=13, loc="left")
    paths = [folder / "report.png", folder / "report.svg"]
    with rc_context({"svg.hashsalt": "report", "svg.fonttype": "path"}):
        for path in paths:
            figure.savefig(path, dpi=192, metadata={"Date": None} if path.suffix == ".svg" else {})
    return paths
