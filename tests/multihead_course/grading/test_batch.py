"""A class is graded: honest work gets what a person gives; a run can be stopped, repeated and compared."""
import json

import pytest
from places import ROOT
from submissions import LESSON, POINTS, QUICK, RIGHT, SPLIT_WRONG, course_folder, hand_in, honest, put, solved

from multihead_course import cli
from multihead_course.build import lessons
from multihead_course.grading import batch, judges
from multihead_course.grading.marks import Marks
from multihead_course.release import editions
from multihead_lessons.exercises import exercises

HONEST = honest()


@pytest.mark.parametrize("student", HONEST)
def test_honest_work_gets_what_a_person_gives(graded, student):
    _, deserved = HONEST[student]
    record = Marks(graded[1]).students[student][LESSON]
    for name, mistake in deserved.items():
        mark = record.exercises[name]
        state = {None: "passed", "stub": "not attempted"}.get(mistake, "failed")
        named = mistake if state == "failed" else None
        assert (mark.state, mark.misconception) == (state, named), mark.message
        assert mark.points == (POINTS[name] if state == "passed" else 0) and mark.max_points == POINTS[name]
    question = record.questions["layout_bug"]
    assert (question.state, question.points, question.max_points) == ("for manual grading", None, 2)


def test_the_class_makes_every_kind_of_mistake(graded):
    found = {mark.misconception for _, _, record in Marks(graded[1]).records()
             for mark in record.exercises.values()}
    assert found == {mistake for _, deserved in HONEST.values() for mistake in deserved.values()} - {"stub"}


def test_the_marks_say_which_guards_held(graded):
    assert Marks(graded[1]).guards == ["files", "sockets", "processes", "memory", "output", "time"]


def test_the_courses_own_solutions_get_all_points(tmp_path, shared):
    for lesson in lessons(ROOT):
        if lesson.named("exercise"):
            source, handed_out = editions(lesson, "course-0-py3-none-any.whl")
            put(tmp_path / "course" / "release" / lesson.name / f"{lesson.name}.ipynb", handed_out)
            put(tmp_path / "course" / "submitted" / "a" / lesson.name / f"{lesson.name}.ipynb", source)
    _grade(tmp_path / "course", tmp_path / "marks")
    found = {name: mark for _, _, record in Marks(tmp_path / "marks").records()
             for name, mark in record.exercises.items()}
    assert set(found) == set(exercises())
    assert {name: mark.message for name, mark in found.items() if mark.state != "passed"} == {}


@pytest.fixture
def small(tmp_path, shared):
    """A course folder with three submissions. Nothing is started to grade it."""
    course = course_folder(tmp_path / "course")
    for student in "abc":
        hand_in(course, student, solved(**RIGHT))
    return course


def _grade(course, marks, **options):
    said = []
    batch.grade(course, marks, jobs=2, limits=QUICK, say=said.append, **options)
    return said


def test_a_run_goes_on_where_it_was_stopped_and_repeats_itself(small, tmp_path, monkeypatch):
    monkeypatch.setattr(batch, "SAY_EVERY", 0)

    def stop(sentence):
        if sentence == "graded 1 of 3":
            raise KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt):
        batch.grade(small, tmp_path / "marks", jobs=1, limits=QUICK, say=stop)
    assert len(Marks(tmp_path / "marks").students) == 1
    seeds = (tmp_path / "marks" / "seeds.json").read_bytes()

    said = _grade(small, tmp_path / "marks")
    assert said[0] == "3 submissions, 1 of them graded before"
    assert any(sentence.startswith("graded 2 of 2, about 0 s left") for sentence in said)
    before = (tmp_path / "marks" / "marks.json").read_bytes()

    monkeypatch.setattr("multihead_course.grading.forking.ForkingProcess", None)  # none is needed now
    assert _grade(small, tmp_path / "marks")[0] == "3 submissions, 3 of them graded before"
    assert (tmp_path / "marks" / "marks.json").read_bytes() == before
    assert (tmp_path / "marks" / "seeds.json").read_bytes() == seeds
    assert (tmp_path / "marks" / "seeds.json").stat().st_mode & 0o077 == 0


def test_what_changed_is_graded_again_and_named(small, tmp_path):
    _grade(small, tmp_path / "old")
    (tmp_path / "new").mkdir()
    for name in ("marks.json", "seeds.json"):
        (tmp_path / "new" / name).write_bytes((tmp_path / "old" / name).read_bytes())
    hand_in(small, "b", solved(**{**RIGHT, "split_heads": SPLIT_WRONG["direct view"]}))
    (small / "submitted" / "c").rename(small / "submitted" / "d")
    said = _grade(small, tmp_path / "new", compare=tmp_path / "old")
    assert said[0] == "3 submissions, 1 of them graded before"
    assert f"b / {LESSON} / split_heads: passed, 3 of 3 -> failed (direct view), 0 of 3" in said
    assert f"c / {LESSON} / copies: no longer there, passed, 2 of 2" in said
    assert f"d / {LESSON} / copies: new, passed, 2 of 2" in said
    assert not any(sentence.startswith("a /") for sentence in said)


def test_another_engine_or_release_grades_everything_again(small, tmp_path, monkeypatch):
    def digests():
        return {task.digest for task in batch._tasks(small, batch._released(small, ()))}
    before = digests()
    monkeypatch.setattr(batch, "_engine_digest", lambda: b"another")
    other = digests()
    assert len(before) == len(other) == 1 and before != other  # the same notebook three times
    path = small / "release" / LESSON / f"{LESSON}.ipynb"
    path.write_bytes(path.read_bytes() + b" ")
    assert digests().isdisjoint(before | other)


def test_without_guards_it_refuses_unless_told(small, tmp_path, shared):
    shared.held = ["sockets", "processes", "memory", "output", "time"]
    with pytest.raises(ValueError, match="these guards do not hold: files .* add --unguarded"):
        _grade(small, tmp_path / "marks")
    assert Marks(tmp_path / "marks").students == {}
    said = _grade(small, tmp_path / "marks", unguarded=True)
    assert any(sentence.startswith("GRADING WITHOUT FILES") for sentence in said)
    assert "files" not in Marks(tmp_path / "marks").guards and len(Marks(tmp_path / "marks").students) == 3


def test_a_judge_that_dies_costs_one_submission(small, tmp_path, monkeypatch):
    """The judges of this test end themselves at student b."""
    tasks = list(batch._tasks(small, batch._released(small, ())))
    monkeypatch.setattr(judges, "_serve", _mortal)
    with judges.Judges(2, None, None, batch._released(small, ()), {}) as pool:
        found = {task.student: record for task, record in pool.judge(tasks)}
    assert {student: record.exercises["copies"].state for student, record in found.items()} == {
        "a": "passed", "b": "needs a person", "c": "passed"}
    assert found["b"].digest not in {task.digest for task in tasks}  # so the next run tries again


def _mortal(line, *about):
    from multihead_course.grading.marks import Mark, Record
    while True:
        folder, _ = line.recv()
        assert folder.parent.name != "b"
        line.send(Record("", "", {"copies": Mark("passed", 2, 2)}, {}))


@pytest.mark.parametrize("arguments, sentence", [
    (["grade", "{}/nowhere", "--out", "{}/marks"], "make it with course release"),
    (["grade", "{}/course", "--out", "{}/marks", "--lesson", "99"], "'99' was not released"),
    (["grade", "{}/course", "--out", "{}/marks", "--compare", "{}/old"], "there are no marks in"),
    (["feedback", "{}/marks"], "there are no marks in"), (["export", "{}/marks"], "there are no marks in"),
    (["grade", "{}/course", "--out", "{}/marks", "--jobs", "0"], "must be at least 1"),
    (["report", "{}/marks"], "there are no marks in"),
    (["export", "{}/marks", "--to", "nbgrader"], "add --course COURSE")])
def test_the_command_refuses_in_one_sentence(small, tmp_path, capsys, arguments, sentence):
    assert cli.main([argument.format(tmp_path) for argument in arguments]) == 1
    assert sentence in capsys.readouterr().err


def test_damaged_marks_are_named_and_kept(tmp_path):
    (tmp_path / "marks.json").write_text('{"format": 1, "students"')
    with pytest.raises(ValueError, match="damaged"):
        Marks(tmp_path)
    (tmp_path / "marks.json").write_text(json.dumps({"format": 99}))
    with pytest.raises(ValueError, match="format 99"):
        Marks(tmp_path)
