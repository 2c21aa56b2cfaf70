"""One class, graded once, and one forking process for every test that needs no other."""
import pytest
from submissions import QUICK, course_folder, hand_in, honest

from multihead_course.grading.batch import grade
from multihead_course.grading.forking import ForkingProcess


@pytest.fixture(scope="session")
def graded(tmp_path_factory):
    """(course folder, folder of marks) of a class of forty honest students."""
    folder = tmp_path_factory.mktemp("class")
    course = course_folder(folder / "course")
    for student, (notebook, _) in honest().items():
        hand_in(course, student, notebook)
    grade(course, folder / "marks", jobs=2, limits=QUICK, say=lambda sentence: None)
    return course, folder / "marks"


@pytest.fixture(scope="session")
def forking(tmp_path_factory):
    """A forking process that must not read one folder, with a file in it. `held` are the guards that held."""
    hidden = tmp_path_factory.mktemp("hidden")
    (hidden / "file").write_text("secret")
    with ForkingProcess([hidden], QUICK) as process:
        process.held = process.guards()
        yield process


@pytest.fixture
def shared(forking, monkeypatch):
    """`grade` uses that process instead of starting its own; `shared.held` is what it takes to hold."""
    class Shared:
        control, held = forking.control, forking.held

        def __init__(self, hidden, limits):
            """Nothing is started."""

        def __enter__(self):
            return self

        def __exit__(self, *_):
            """Nothing is ended."""

        def guards(self):
            return self.held
    monkeypatch.setattr("multihead_course.grading.forking.ForkingProcess", Shared)
    return Shared
