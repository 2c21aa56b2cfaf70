"""What is made of the marks: feedback for students, files for other programs, a report for the lecture."""
import csv
import html
import io
import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from submissions import (
    LESSON, SPLIT_WRONG, cell_of, course_folder, hand_in, honest, solved, source, with_cell,
)

from multihead_course import cli
from multihead_course.grading import export as exporting
from multihead_course.grading.export import export
from multihead_course.grading.feedback import feedback
from multihead_course.grading.gradebook import hand_over
from multihead_course.grading.marks import Mark, Marks, Record
from multihead_course.grading.report import report, rows

CANVAS = """\
Student,ID,SIS User ID,SIS Login ID,Section,03_the_4d_pipeline (4711),Final Score
    Points Possible,,,,,8,(read only)
"Lovelace, Ada",7,u7,ada,Monday,,90
"Noether, Emmy",8,u8,emmy,Monday,,80
"Hopper, Grace",9,u9,grace,Tuesday,,70
"""
MOODLE = """\
First name,Last name,ID number,Email address
Ada,Lovelace,ada,ada@example.org
Emmy,Noether,emmy,emmy@example.org
"""


def _mark(state, points, most, message="passed.", misconception=None):
    return Mark(state, points, most, message, misconception, ["for the instructor only"])


@pytest.fixture
def marks(tmp_path):
    """Two students: one failed an exercise, one needs a person."""
    made = Marks(tmp_path / "marks")
    parts = (("split_heads", "exercise", 3), ("copies", "exercise", 2.5), ("layout_bug", "question", 2))
    made.lessons = {LESSON: {name: {"kind": kind, "max_points": most, "heading": f"Your turn: `{name}`"}
                             for name, kind, most in parts}}
    question = {"layout_bug": _mark("for manual grading", None, 2, "A person reads this answer.")}
    ada = {"split_heads": _mark("failed", 0, 3, "you <split> & forgot", "direct view+no transpose"),
           "copies": _mark("passed", 2.5, 2.5)}
    emmy = {"split_heads": _mark("needs a person", None, 3, "two notebooks"),
            "copies": _mark("not attempted", 0, 2.5, "not attempted yet.")}
    made.students = {"ada": {LESSON: Record("a.ipynb", "1", ada, question, ["late"])},
                     "emmy": {LESSON: Record("", "2", emmy, question)}}
    made.guards = ["files"]
    made.save()
    return made


def test_marks_are_read_as_they_were_written(marks):
    again = Marks(marks.folder)
    assert (again.students, again.lessons, again.guards) == (marks.students, marks.lessons, marks.guards)
    before = marks.path.read_bytes()
    again.save()
    assert marks.path.read_bytes() == before


class _Reader(HTMLParser):
    """The text of a page, and whether its elements are balanced."""

    def __init__(self, page):
        super().__init__()
        self.text, self.open = "", []
        self.feed(page)

    def handle_data(self, data):
        self.text += data

    def handle_starttag(self, tag, attributes):
        self.open += [tag] if tag != "meta" else []

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_feedback_says_what_was_right_which_mistake_and_where_to_look(marks):
    written = feedback(marks.folder)
    assert [path.name for path in written] == ["ada.html", "ada.txt", "emmy.html", "emmy.txt"]
    text = (marks.folder / "feedback" / "ada.txt").read_text()
    page = _Reader((marks.folder / "feedback" / "ada.html").read_text())
    assert page.open == []
    for found in (text, page.text):
        assert "copies: right, 2.5 of 2.5 points" in found
        assert "split_heads: not right yet, 0 of 3 points" in found and "You <split> & forgot" in found
        assert "Look at “Your turn: split_heads” in lesson 03 the 4d pipeline" in found
        assert "2.5 of 5.5 points so far. 2 more are still to be given by a person." in found
        assert "for the instructor only" not in found
    assert "Two notebooks" in (marks.folder / "feedback" / "emmy.txt").read_text()


def test_feedback_of_students_who_are_gone_is_removed(marks):
    feedback(marks.folder)
    del marks.students["emmy"]
    marks.save()
    feedback(marks.folder)
    assert sorted(path.name for path in (marks.folder / "feedback").iterdir()) == ["ada.html", "ada.txt"]


def test_a_name_that_is_no_text_stops_nobody(marks):
    marks.students["b\udcff"] = marks.students["ada"]
    marks.save()
    assert len(feedback(marks.folder)) == 6
    assert len(_table(export(marks.folder, "plain")[0])) == 1 + 9


def _table(path):
    return list(csv.reader(io.StringIO(path.read_text())))


def test_the_plain_table_has_a_row_for_each_mark_and_no_zero_for_an_open_one(marks):
    path, sentences = export(marks.folder, "plain")
    header, *found = _table(path)
    assert header == ["student", "lesson", "name", "kind", "state", "points", "max_points", "misconception"]
    assert ["emmy", LESSON, "split_heads", "exercise", "needs a person", "", "3", ""] in found
    assert ["emmy", LESSON, "copies", "exercise", "not attempted", "0", "2.5", ""] in found
    assert ["ada", LESSON, "layout_bug", "question", "for manual grading", "", "2", ""] in found
    assert len(found) == 6
    assert f"emmy / {LESSON} / split_heads needs a person: two notebooks" in sentences


def test_canvas_gets_its_own_columns_back(marks, tmp_path):
    (tmp_path / "roster.csv").write_text(CANVAS, encoding="utf-8-sig")
    path, sentences = export(marks.folder, "canvas", tmp_path / "roster.csv")
    assert _table(path) == [
        ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", "03_the_4d_pipeline (4711)"],
        ["    Points Possible", "", "", "", "", "5.5"],
        ["Lovelace, Ada", "7", "u7", "ada", "Monday", "2.5"],
        ["Noether, Emmy", "8", "u8", "emmy", "Monday", ""],
        ["Hopper, Grace", "9", "u9", "grace", "Tuesday", ""]]
    assert "grace is in the roster and has no marks" in sentences
    with pytest.raises(ValueError, match="give that file as --roster"):
        export(marks.folder, "canvas")


def test_moodle_with_and_without_a_roster(marks, tmp_path):
    (tmp_path / "roster.csv").write_text(MOODLE)
    path, _ = export(marks.folder, "moodle", tmp_path / "roster.csv", tmp_path / "out.csv")
    assert path == tmp_path / "out.csv" and _table(path) == [
        ["ID number", "Email address", "First name", "Last name", LESSON],
        ["ada", "ada@example.org", "Ada", "Lovelace", "2.5"],
        ["emmy", "emmy@example.org", "Emmy", "Noether", ""]]
    assert _table(export(marks.folder, "moodle")[0]) == [["Username", LESSON], ["ada", "2.5"], ["emmy", ""]]


@pytest.mark.parametrize("content, complaint", [
    ("color,size\nblue,3\n", "has no column for students' ids"),
    ("Username,size\n,3\n", "has no students: no row has an id"),
    ("Username\nada\nAda\n", "two students have the id")])
def test_a_roster_that_is_none_is_named(content, complaint, marks, tmp_path):
    (tmp_path / "roster.csv").write_text(content)
    with pytest.raises(ValueError, match=f"roster.csv.*{complaint}"):
        export(marks.folder, "moodle", tmp_path / "roster.csv")


def test_someone_with_marks_who_is_not_in_the_roster_is_named(marks, tmp_path):
    (tmp_path / "roster.csv").write_text("Username\nada\n")
    _, sentences = export(marks.folder, "moodle", tmp_path / "roster.csv")
    assert "emmy has marks and is not in the roster" in sentences


def test_json_has_everything_but_the_notes(marks):
    found = json.loads(export(marks.folder, "json")[0].read_text())
    assert found["students"]["emmy"][LESSON]["split_heads"] == {
        "state": "needs a person", "points": None, "max_points": 3, "message": "two notebooks",
        "misconception": None}
    assert "instructor" not in json.dumps(found)
    assert set(exporting.FORMATS) == {"plain", "json", "canvas", "moodle", "nbgrader"}


def test_the_report_counts_students(marks):
    split, copies = rows(marks)
    assert (split.handed_in, split.share, copies.share) == (2, 0, 0.5)
    assert split.misconceptions == {"direct view": 1, "no transpose": 1}


def test_the_report_of_a_class(graded):
    table, paths = report(graded[1])
    deserved = [mistakes for _, mistakes in honest().values()]
    passed = sum(mistakes["split_heads"] is None for mistakes in deserved)
    assert f"{LESSON} / split_heads" in table and f"{passed} ({round(100 * passed / 40)} %)" in table
    times = sum(mistakes["split_heads"] == "direct view" for mistakes in deserved)
    assert f"{times} students: direct view" in table
    assert [path.name for path in paths] == ["report.txt", "report.png", "report.svg"]
    assert paths[1].read_bytes().startswith(b"\x89PNG") and "<svg" in paths[2].read_text()


def test_the_commands_go_from_marks_to_files(graded, capsys):
    for arguments in (["feedback"], ["export"], ["export", "--to", "json"], ["report"]):
        assert cli.main([arguments[0], str(graded[1]), *arguments[1:]]) == 0
    said = capsys.readouterr().out
    assert "80 files in" in said and "plain.csv" in said and "report.png" in said
    assert len(list((graded[1] / "feedback").glob("*.html"))) == 40


# nbgrader

def _nbgrader(course, *arguments):
    bin_folder = Path(sys.executable).parent
    return subprocess.run([bin_folder / "nbgrader", *arguments], cwd=course, capture_output=True, text=True,
                          env={"PATH": f"{bin_folder}:/usr/bin:/bin", "HOME": str(course)})


def _scores(course):
    run = _nbgrader(course, "export", f"--to={course / 'grades.csv'}")
    assert run.returncode == 0, run.stderr
    return {row["student_id"]: float(row["score"]) for row in csv.DictReader((course / "grades.csv").open())}


def test_the_hand_over_fills_nbgraders_gradebook(marks, tmp_path, monkeypatch):
    """For an export that its own tools read, with a score of a person's hand that stays."""
    api = pytest.importorskip("nbgrader.api")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")  # an environment that is not activated
    course = course_folder(tmp_path / "course")
    for record in (marks.students["ada"][LESSON], marks.students["emmy"][LESSON]):
        record.exercises["predict_strides"] = _mark("passed", 3, 3)
    marks.students["ada"][LESSON].notebook = "deep/final.ipynb"
    notebook = with_cell(solved(split_heads=SPLIT_WRONG["list"]), "def helper():\n    pass", before="copies")
    hand_in(course, "ada", notebook, "deep/final.ipynb")
    marks.save()
    for score in (None, 1):
        sentences = hand_over(marks.folder, course)
        assert sentences[-1].startswith("2 submissions are in")
        with api.Gradebook(f"sqlite:///{course}/gradebook.db") as gradebook:
            notebook = gradebook.find_submission_notebook(LESSON, LESSON, "emmy")
            grades = {grade.name: grade for grade in notebook.grades}
            found = {name: (grade.auto_score, grade.manual_score, grade.needs_manual_grade)
                     for name, grade in grades.items()}
            assert found == {"grade_split_heads": (None, None, True), "grade_copies": (0, None, False),
                             "grade_predict_strides": (3, None, False),
                             "layout_bug": (None, score, score is None)}
            grades["layout_bug"].manual_score, grades["layout_bug"].needs_manual_grade = 1, False
            gradebook.db.commit()
    assert "emmy / 03_the_4d_pipeline: there is no readable notebook" in sentences[0]
    shown = json.loads((course / "autograded" / "ada" / LESSON / f"{LESSON}.ipynb").read_text())
    assert "list(x.chunk(h, dim=-1))" in source(cell_of(shown, "split_heads"))
    assert "you <split> & forgot" in cell_of(shown, "grade_split_heads")["outputs"][0]["text"]
    assert [source(cell) for cell in shown["cells"]].count("def helper():\n    pass") == 1


@pytest.mark.slow
def test_nbgrader_goes_on_from_the_hand_over(graded):
    course, marks_folder = graded
    hand_over(marks_folder, course)
    marks = Marks(marks_folder)
    deserved = {student: _sum(records[LESSON]) for student, records in marks.students.items()}
    assert _scores(course) == deserved
    run = _nbgrader(course, "generate_feedback", LESSON, "--student=honest01")
    assert run.returncode == 0, run.stderr
    page = (course / "feedback" / "honest01" / LESSON / f"{LESSON}.html").read_text()
    for mark in marks.students["honest01"][LESSON].exercises.values():
        assert _words(mark.message) in _words(html.unescape(re.sub("<[^>]*>", "", page)))


def _sum(record):
    return sum(mark.points for mark in record.exercises.values())


def _words(text):
    return " ".join(text.split())


@pytest.mark.slow
def test_nbgraders_own_grading_gives_the_same_marks(graded, tmp_path):
    """A sample of honest work: right answers, named mistakes, stubs."""
    course = course_folder(tmp_path / "course")
    sample = ["honest00", "honest07", "honest13", "honest22"]
    for student in sample:
        shutil.copytree(graded[0] / "submitted" / student, course / "submitted" / student)
    assert _nbgrader(course, "generate_assignment", LESSON, "--create", "--force").returncode == 0
    run = _nbgrader(course, "autograde", LESSON)
    assert run.returncode == 0, run.stderr
    ours = Marks(graded[1])
    assert _scores(course) == {student: _sum(ours.students[student][LESSON]) for student in sample}
