"""How a bank is proven: every misconception is caught as itself, told apart from the others, whatever the draw."""
from collections.abc import Iterable

from multihead_lessons.exercises import examine, exercises
from multihead_lessons.exercises.bank import Exercise

SEEDS = range(20)


def stranger(function):
    """A function that the engine has never seen, with the same behavior."""
    return lambda *args, **kwargs: function(*args, **kwargs)


def assert_every_misconception_is_named(exercise: Exercise, seeds: Iterable[int] = SEEDS) -> None:
    """Refused and named as itself, for every draw: so no two give the same results on any drawn input."""
    for seed in seeds:
        for misconception in exercise.misconceptions:
            verdict = examine(exercise.name, stranger(misconception.wrong), seed=seed)
            assert not verdict.passed and verdict.misconception == misconception.slug, (
                f"seed {seed}: '{misconception.slug}' is taken for {verdict}")


def assert_pairs_are_refused_and_named(exercise: Exercise, seeds: Iterable[int] = range(3)) -> None:
    """Two mistakes at once never pass. They are named as the pair, or as one mistake that gives the same results."""
    pairs = [(slug, wrong) for slug, _, wrong in exercise.explanations() if "+" in slug]
    assert pairs
    for seed in seeds:
        for slug, wrong in pairs:
            verdict = examine(exercise.name, stranger(wrong), seed=seed)
            assert not verdict.passed, f"seed {seed}: {slug} passes"
            assert verdict.misconception != "unknown", f"seed {seed}: {slug} is not named"


def assert_right(name: str, answers: Iterable, seeds: Iterable[int] = range(5)) -> None:
    for answer in answers:
        for seed in seeds:
            verdict = examine(name, answer, seed=seed)
            assert verdict.passed, f"{getattr(answer, '__name__', answer)} is refused: {verdict.message}"


def sentence(name: str, answer, seed: int = 0) -> str:
    verdict = examine(name, answer, seed=seed)
    assert not verdict.passed
    return verdict.message


def names() -> list[str]:
    return list(exercises())
