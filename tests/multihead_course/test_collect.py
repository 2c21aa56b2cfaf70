"""What students handed in, in every form in which a system gives it back, into submitted/STUDENT/LESSON/."""
import json
import os
import zipfile

import pytest

from multihead_course import cli, uploads
from multihead_course.build import STAMP
from multihead_course.collect import collect, read_roster

SPLIT, MERGE = "03_the_4d_pipeline", "04_concat_and_w_o"
EXERCISES = {SPLIT: ["split_heads", "copies"], MERGE: ["merge_heads"]}
CANVAS = "lovelaceada_101_5001_03_the_4d_pipeline.ipynb"


def notebook(lesson=SPLIT, text="my answer", stamp=True, ids=True, define=True):
    """A handed-in notebook as JSON; without some of what tells which lesson it is."""
    cells = []
    for name in EXERCISES[lesson]:
        source = f"def {name}(x):\n    return '{text}'" if define else text
        cells.append(cell(source, {"grade_id": name} if ids else None))
        if ids:
            cells.append(cell("", {"grade_id": f"grade_{name}", "grade": True, "points": 1}))
    metadata = {STAMP: {"lesson": lesson}} if stamp else {}
    return json.dumps({"cells": cells, "metadata": metadata, "nbformat": 4}).encode()


def cell(source, marked=None):
    metadata = {"nbgrader": marked} if marked else {}
    return {"cell_type": "code", "source": source, "outputs": [], "metadata": metadata}


@pytest.fixture
def course(tmp_path):
    """A course folder with two released lessons."""
    for lesson in EXERCISES:
        path = tmp_path / "course" / "release" / lesson / f"{lesson}.ipynb"
        path.parent.mkdir(parents=True)
        path.write_bytes(notebook(lesson))
    return tmp_path / "course"


@pytest.fixture(params=["zip", "folder"])
def handed_in(request, tmp_path):
    """Files by name, as a zip or as a folder."""
    def pack(files):
        files = files if isinstance(files, dict) else dict.fromkeys(files, notebook())
        if request.param == "zip":
            with zipfile.ZipFile(tmp_path / "submissions.zip", "w") as archive:
                for name, content in files.items():
                    archive.writestr(zipfile.ZipInfo(name, (2030, 1, 31, 12, 0, 0)), content)
            return tmp_path / "submissions.zip"
        for name, content in files.items():
            (tmp_path / "downloads" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "downloads" / name).write_bytes(content)
            os.utime(tmp_path / "downloads" / name, (1, 1))
        return tmp_path / "downloads"
    return pack


def submitted(course):
    """'STUDENT/LESSON' -> bytes, and nothing but properly named notebooks."""
    found = {}
    for path in (course / "submitted").rglob("*.ipynb"):
        student, lesson, file = path.relative_to(course / "submitted").parts
        assert file == f"{lesson}.ipynb"
        found[f"{student}/{lesson}"] = path.read_bytes()
    return found


# Namings

@pytest.mark.parametrize("name, student", [
    (CANVAS, "lovelaceada"),
    ("lovelaceada_LATE_101_5001_03_the_4d_pipeline.ipynb", "lovelaceada"),
    ("lovelaceada_101_5001_03_the_4d_pipeline-2.ipynb", "lovelaceada"),
    ("lovelaceada_101_5001_03_the_4d_pipeline (1)-1.ipynb", "lovelaceada"),
    ("lovelaceada_101_5001_my_final_version.ipynb", "lovelaceada"),
    ("submissions/lovelaceada_101_5001_homework.ipynb.txt", "lovelaceada"),
    ("Ada Lovelace_77_assignsubmission_file_/03_the_4d_pipeline.ipynb", "ada_lovelace"),
    ("Ada Lovelace_77_assignsubmission_file/deep/inside/x.ipynb", "ada_lovelace"),
    ("Ada Lovelace_77_assignsubmission_file_03_the_4d_pipeline.ipynb", "ada_lovelace"),
    ("Zoë Ñandú_77_assignsubmission_file_x.ipynb", "zoë_ñandú"),
    ("ada+03_the_4d_pipeline+2030-01-31 12:00:00.123456 UTC+Xy_-z==/03_the_4d_pipeline.ipynb", "ada"),
    ("multihead/inbound/ada+03_the_4d_pipeline+2030-01-31 12:00:00 UTC/03_the_4d_pipeline.ipynb", "ada"),
    ("ada/03_the_4d_pipeline.ipynb", "ada"),
    ("ada/renamed (3).ipynb", "ada"),
    ("submitted/ada.l@example.org/03_the_4d_pipeline/03_the_4d_pipeline.ipynb", "ada.l@example.org"),
])
def test_every_naming(course, handed_in, name, student):
    said = collect(handed_in([name]), course)
    assert submitted(course) == {f"{student}/{SPLIT}": notebook()}
    late = ", late" if "_LATE_" in name else ""
    assert said == [f"{student}: took {name} as {SPLIT}{late}.", "Taken: 1. Left: 0. Missing: 0."]


@pytest.mark.parametrize("name, why", [
    ("lovelaceada_101_5001_essay.pdf", "not a notebook"),
    ("lovelaceada_101_5001_everything.zip", "not a notebook"),
    ("03_the_4d_pipeline.ipynb", "does not say whose it is"),
    ("03_the_4d_pipeline/03_the_4d_pipeline.ipynb", "does not say whose it is"),
    ("a/b/c.ipynb", "does not say whose it is"),
])
def test_what_cannot_be_taken_is_left_by_name(course, handed_in, name, why):
    said = collect(handed_in([name]), course)
    assert submitted(course) == {}
    assert any(f"left {name}: " in sentence and why in sentence for sentence in said)
    assert said[-1].startswith("Taken: 0. Left: 1.")


def test_what_others_put_beside_a_notebook_is_not_mentioned(course, handed_in):
    clutter = ["__MACOSX/ada/._x.ipynb", "ada/.ipynb_checkpoints/x-checkpoint.ipynb", "ada/.DS_Store",
               "ada/timestamp.txt", "ada/multihead_course-0.1.0+12345678-py3-none-any.whl"]
    said = collect(handed_in(["ada/x.ipynb", *clutter]), course)
    assert said == [f"ada: took ada/x.ipynb as {SPLIT}.", "Taken: 1. Left: 0. Missing: 0."]


def test_the_exchange_keeps_nbgraders_timestamp(course, handed_in):
    when = "2030-01-31 12:00:00.123456 UTC"
    collect(handed_in([f"ada+{SPLIT}+{when}+abc/{SPLIT}.ipynb"]), course)
    assert (course / "submitted" / "ada" / SPLIT / "timestamp.txt").read_text() == when


@pytest.mark.parametrize("name", [
    "../evil.ipynb", "../../course/evil.ipynb", "/etc/evil.ipynb", "..\\evil/x.ipynb", "-rf/x.ipynb",
    "..+03_the_4d_pipeline+2030-01-31 12:00:00 UTC/x.ipynb", "../03_the_4d_pipeline/x.ipynb"])
def test_no_name_leads_out_of_the_folder(course, tmp_path, name):
    with zipfile.ZipFile(tmp_path / "evil.zip", "w") as archive:
        archive.writestr(name, notebook())
    before = set(tmp_path.rglob("*"))
    collect(tmp_path / "evil.zip", course)
    new = {path for path in tmp_path.rglob("*") if path.is_file()} - before - {course / ".course.json"}
    assert all(path.match(f"course/submitted/*/{SPLIT}/{SPLIT}.ipynb") for path in new)


def test_a_name_cannot_write_on_the_terminal(course, handed_in):
    said = collect(handed_in(["ada/\x1b[2J\x1b]0;owned\x07.ipynb"]), course)
    assert said[0] == f"ada: took ada/?[2J?]0;owned?.ipynb as {SPLIT}."


# Which lesson

@pytest.mark.parametrize("told", [{"stamp": True}, {"ids": True}, {"define": True}])
def test_a_renamed_notebook_is_known_by_what_is_in_it(course, handed_in, told):
    content = notebook(MERGE, **{"stamp": False, "ids": False, "define": False, **told})
    collect(handed_in({"ada/03_the_4d_pipeline.ipynb": content}), course)
    assert list(submitted(course)) == [f"ada/{MERGE}"]


@pytest.mark.parametrize("name", ["ada/03 The 4D pipeline - final.ipynb", f"ada/{SPLIT}/x.ipynb"])
def test_a_notebook_that_lost_everything_is_known_by_its_name(course, handed_in, name):
    collect(handed_in({name: notebook(stamp=False, ids=False, define=False)}), course)
    assert list(submitted(course)) == [f"ada/{SPLIT}"]


def test_another_lesson_and_another_notebook_are_left(course, handed_in):
    other = json.loads(notebook())
    other["metadata"][STAMP]["lesson"] = "05_direct_sums"
    nothing = notebook(stamp=False, ids=False, define=False)
    said = collect(handed_in({"ada/a.ipynb": json.dumps(other).encode(), "bob/b.ipynb": nothing}), course)
    assert submitted(course) == {}
    assert "ada: left ada/a.ipynb: it is 05_direct_sums, which was not released" in said[0]
    assert "bob: left bob/b.ipynb: nothing in it belongs to a released lesson." in said


@pytest.mark.parametrize("content", [notebook()[:200], b"", b"[" * 100_000, b"\0\xff\xfe"])
def test_a_damaged_notebook_is_taken_for_a_human_to_look_at(course, handed_in, content):
    said = collect(handed_in({f"ada/{SPLIT}.ipynb": content}), course)
    assert submitted(course) == {f"ada/{SPLIT}": content}
    assert "It cannot be read: look at it yourself." in said[0]


@pytest.mark.parametrize("content", [
    "\ufeff".encode() + notebook(), notebook().decode().encode("utf-16"), notebook() + b"\0\0",
    notebook().replace(b"my", "né".encode("latin-1"))])
def test_other_encodings_are_read_and_handed_on_unchanged(course, handed_in, content):
    said = collect(handed_in({"ada/x.ipynb": content}), course)
    assert said[0] == f"ada: took ada/x.ipynb as {SPLIT}."
    assert submitted(course) == {f"ada/{SPLIT}": content}


@pytest.mark.parametrize("content", [b"3", b"{}", b'{"cells": 3}', b"[[]]"])
def test_json_that_is_no_notebook_is_for_a_human_too(course, handed_in, content):
    said = collect(handed_in({f"ada/{SPLIT}.ipynb": content}), course)
    assert "It cannot be read: look at it yourself." in said[0]


@pytest.mark.parametrize("strange", [
    3, {}, {"source": 3}, {"source": [3, "1"], "metadata": []}, {"source": "\ud800"}, cell("def ("),
    {"source": "1", "metadata": {"nbgrader": {"grade_id": []}}}])
@pytest.mark.parametrize("metadata", [[], {STAMP: 3}, {STAMP: {"lesson": "../../x"}}])
def test_a_strange_notebook_is_still_somebodys_work(course, handed_in, strange, metadata):
    answer = cell("def split_heads(x):\n    return x")
    content = json.dumps({"cells": [strange, answer], "metadata": metadata}).encode()
    collect(handed_in({"ada/x.ipynb": content}), course)
    assert submitted(course) == {f"ada/{SPLIT}": content}


# Several uploads

@pytest.mark.parametrize("earlier, later", [
    (CANVAS, "lovelaceada_101_5001_03_the_4d_pipeline-1.ipynb"),
    ("lovelaceada_101_5001_03_the_4d_pipeline-9.ipynb", "lovelaceada_101_5001_03_the_4d_pipeline-10.ipynb"),
    ("lovelaceada_101_999_zzz.ipynb", "lovelaceada_LATE_101_5001_aaa.ipynb"),
    (f"ada+{SPLIT}+2030-01-31 12:00:00 UTC+zzz/x.ipynb", f"ada+{SPLIT}+2030-02-01 09:00:00 UTC+aaa/x.ipynb"),
])
def test_of_several_uploads_the_last_is_taken(course, handed_in, earlier, later):
    place = handed_in({later: notebook(text="new"), earlier: notebook(text="old")})
    said = collect(place, course)
    assert [b"new" in content for content in submitted(course).values()] == [True]
    assert any(f"left {earlier}: {later} is later." in sentence for sentence in said)
    assert said[-1] == "Taken: 1. Left: 1. Missing: 0."


def test_the_date_of_the_file_decides_where_names_do_not(course, tmp_path):
    for name, second in (("b", 10), ("a", 20)):
        path = tmp_path / "ada" / f"{name}.ipynb"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(notebook(text=name))
        os.utime(path, (second, second))
    folder = tmp_path / "all"
    folder.mkdir()
    (tmp_path / "ada").rename(folder / "ada")
    collect(folder, course)
    assert b"return 'a'" in submitted(course)[f"ada/{SPLIT}"]


def test_a_later_upload_that_cannot_be_read_does_not_hide_one_that_can(course, handed_in):
    said = collect(handed_in({CANVAS: notebook(), CANVAS.replace(".ipynb", "-1.ipynb"): b"{"}), course)
    assert submitted(course) == {f"lovelaceada/{SPLIT}": notebook()}
    assert any("-1.ipynb: it cannot be read, and another one counts." in sentence for sentence in said)


def test_two_lessons_of_a_student_are_both_taken(course, handed_in):
    collect(handed_in({"ada/a.ipynb": notebook(SPLIT), "ada/b.ipynb": notebook(MERGE)}), course)
    assert sorted(submitted(course)) == [f"ada/{SPLIT}", f"ada/{MERGE}"]


def test_collecting_again_takes_what_is_new_and_says_so(course, handed_in):
    collect(handed_in({"ada/a.ipynb": notebook(text="old")}), course)
    said = collect(handed_in({"ada/a.ipynb": notebook(text="old")}), course)
    assert said[0] == f"ada: took ada/a.ipynb as {SPLIT}."
    said = collect(handed_in({"ada/a.ipynb": notebook(text="new")}), course)
    assert said[0] == f"ada: took ada/a.ipynb as {SPLIT}, in place of an earlier one."
    assert submitted(course) == {f"ada/{SPLIT}": notebook(text="new")}


def test_a_submission_that_somebody_has_edited_stays(course, handed_in):
    collect(handed_in({"ada/a.ipynb": notebook(text="old")}), course)
    mine = course / "submitted" / "ada" / SPLIT / f"{SPLIT}.ipynb"
    mine.write_bytes(notebook(text="repaired by hand"))
    said = collect(handed_in({"ada/a.ipynb": notebook(text="new")}), course)
    assert mine.read_bytes() == notebook(text="repaired by hand")
    assert f"left ada/a.ipynb: submitted/ada/{SPLIT}/{SPLIT}.ipynb was edited" in said[0]


# Who

@pytest.fixture
def roster(tmp_path):
    def write(text):
        (tmp_path / "roster.csv").write_text(text, encoding="utf-8-sig")
        return tmp_path / "roster.csv"
    return write


ROSTER = ("id,first_name,last_name,email,lms_user_id\n"
          "al,Ada,Lovelace,al@example.org,101\nzn,Zoë,Ñandú,,\ngh,Grace,Hopper,,\n")


def test_a_roster_gives_ids_and_says_who_is_missing(course, handed_in, roster):
    place = handed_in([CANVAS, "nanduzoe_LATE_7_8_x.ipynb", "crackerjack_9_10_x.ipynb",
                       "hoppergrace_11_12_essay.pdf"])
    said = collect(place, course, roster(ROSTER))
    assert sorted(submitted(course)) == [f"al/{SPLIT}", f"zn/{SPLIT}"]
    assert said == [f"al: took {CANVAS} as {SPLIT}.", f"zn: took nanduzoe_LATE_7_8_x.ipynb as {SPLIT}, late.",
                    "gh: left hoppergrace_11_12_essay.pdf: not a notebook.", f"gh: {SPLIT} is missing.",
                    "left crackerjack_9_10_x.ipynb: 'crackerjack' is not in the roster.",
                    "Taken: 2. Left: 2. Missing: 1."]


@pytest.mark.parametrize("name", [
    "unknown_101_2_x.ipynb", "Ada Lovelace_5_assignsubmission_file_/x.ipynb", "AL/x.ipynb",
    "Lovelace, Ada_5_assignsubmission_file_x.ipynb", f"al+{SPLIT}+2030-01-01 00:00:00 UTC/x.ipynb"])
def test_a_student_is_found_by_number_by_name_and_by_id(course, handed_in, roster, name):
    collect(handed_in([name]), course, roster(ROSTER))
    assert list(submitted(course)) == [f"al/{SPLIT}"]


def test_who_was_collected_before_is_not_missing(course, handed_in, roster):
    first = handed_in(["al/x.ipynb"])
    collect(first, course, roster(ROSTER))
    if first.is_dir():
        (first / "al" / "x.ipynb").unlink()
    said = collect(handed_in(["gh/x.ipynb"]), course, roster(ROSTER))
    assert said == [f"al: {SPLIT} was collected before.", f"zn: {SPLIT} is missing.",
                    f"gh: took gh/x.ipynb as {SPLIT}.", "Taken: 1. Left: 0. Missing: 1."]


def test_if_nothing_came_everybody_is_missing(course, handed_in, roster):
    said = collect(handed_in({"notes.txt": b""}), course, roster(ROSTER))
    assert said[-1] == "Taken: 0. Left: 1. Missing: 6."


def test_namesakes_are_not_mixed_up(course, handed_in, roster):
    two = {"Ada Lovelace_1_assignsubmission_file_/x.ipynb": notebook(text="one"),
           "Ada Lovelace_2_assignsubmission_file_/x.ipynb": notebook(text="two")}
    for text in (None, ROSTER):
        said = collect(handed_in(two), course, roster(text) if text else None)
        assert submitted(course) == {}
        assert str(said).count("several people hand in under the name") == 2
    said = collect(handed_in(two), course, roster(ROSTER + "al2,Ada,Lovelace,,\n"))
    assert submitted(course) == {}
    assert str(said).count("2 students of the roster are called 'Ada Lovelace'") == 2


@pytest.mark.parametrize("text, students", [
    ("Student,ID,SIS Login ID\n    Points Possible,,\n\"Lovelace, Ada\",101,al\n", [("al", "101")]),
    ("First name,Last name,ID number,Email address\nAda,Lovelace,al,a@example.org\n", [("al", "")]),
    ("First name,Surname,ID number,Username\nAda,Lovelace,,al\n", [("al", "")]),
    ("id\nal\n\n", [("al", "")]),
])
def test_rosters_of_several_systems(roster, text, students):
    found = read_roster(roster(text))
    assert [(student.id, student.number) for student in found] == students
    assert all("lovelaceada" in student.names for student in found) or text.startswith("id")


@pytest.mark.parametrize("text, sentence", [
    ("name,mail\nAda,a\n", "no column for students' ids: it needs one of id, SIS .*, and has name, mail"),
    ("", "has none"), ("id\nal\nAL\n", "two students have the id 'al'"),
    ("id\n../al\n", "'../al' cannot be an id"), ("id\na+b\n", r"'a\+b' cannot be an id")])
def test_a_roster_that_cannot_be_used(roster, text, sentence):
    with pytest.raises(ValueError, match=sentence):
        read_roster(roster(text))


def test_a_roster_that_cannot_be_read(tmp_path):
    (tmp_path / "latin.csv").write_bytes("id\nZoë\n".encode("latin-1"))
    for path in (tmp_path / "latin.csv", tmp_path / "nowhere.csv"):
        with pytest.raises(ValueError, match="cannot be read as a CSV in UTF-8"):
            read_roster(path)


# What is no submission at all

def test_a_place_that_is_neither_zip_nor_folder(course, tmp_path):
    (tmp_path / "x.rar").write_bytes(b"Rar!")
    for place in (tmp_path / "x.rar", tmp_path / "nowhere"):
        with pytest.raises(ValueError, match="neither a folder nor a zip file"):
            collect(place, course)


def test_a_course_folder_without_release(tmp_path):
    with pytest.raises(ValueError, match="holds no released lesson; run course release"):
        collect(tmp_path, tmp_path / "course")


def test_a_file_that_is_too_large_or_damaged_in_the_zip_is_left(course, tmp_path, monkeypatch):
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("ada/x.ipynb", notebook(text="a" * 3000))
        archive.writestr("bob/x.ipynb", notebook())
    packed = (tmp_path / "x.zip").read_bytes()
    (tmp_path / "x.zip").write_bytes(packed.replace(b"aaa", b"bbb", 1))
    said = collect(tmp_path / "x.zip", course)
    assert said[0] == "ada: left ada/x.ipynb: it cannot be unpacked."
    assert list(submitted(course)) == [f"bob/{SPLIT}"]
    monkeypatch.setattr(uploads, "MAX_BYTES", 1000)
    assert "more than 0" in collect(tmp_path / "x.zip", course)[0]


def test_a_link_in_a_folder_is_not_followed(course, tmp_path):
    (tmp_path / "secret.ipynb").write_bytes(notebook())
    (tmp_path / "in" / "ada").mkdir(parents=True)
    (tmp_path / "in" / "ada" / "x.ipynb").symlink_to(tmp_path / "secret.ipynb")
    assert collect(tmp_path / "in", course) == ["Taken: 0. Left: 0. Missing: 0."]


def test_the_command(course, handed_in, roster, capsys):
    arguments = [handed_in([CANVAS]), "--into", course, "--roster", roster(ROSTER)]
    assert cli.main(["collect", *map(str, arguments)]) == 0
    assert capsys.readouterr().out.splitlines()[0] == f"al: took {CANVAS} as {SPLIT}."
    assert cli.main(["collect", "nowhere.zip", "--into", str(course)]) == 1
    assert capsys.readouterr().err.startswith("course collect: nowhere.zip is neither")
