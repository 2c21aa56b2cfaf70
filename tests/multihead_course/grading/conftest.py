"""One class, graded once: forty honest submissions. Tests read its marks."""
import pytest
from submissions import QUICK, course_folder, hand_in, honest

from multihead_course.grading.batch import grade


@pytest.fixture(scope="session")
def graded(tmp_path_factory):
    """(course folder, folder of marks) of the class."""
    folder = tmp_path_factory.mktemp("class")
    course = course_folder(folder / "course")
    for student, (notebook, _) in honest().items():
        hand_in(course, student, notebook)
    grade(course, folder / "marks", jobs=2, limits=QUICK, say=lambda sentence: None)
    return course, folder / "marks"
