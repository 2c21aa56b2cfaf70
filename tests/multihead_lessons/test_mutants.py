"""Every small change to a reference is caught by its own check, or stands below with the reason why it may pass."""
import pytest
from banks import names
from mutants import mutants

from multihead_lessons.exercises import examine, exercises

# exercise -> {part of the mutant's description: why it gives the same results on every input that the exercise promises}
EQUIVALENT = {
    "attention": {"'weights = weights.masked_fill(blocked, 0.0)' dropped": "acts only on a row with no allowed key, never drawn"},
    "head_dim": {"valid = [": "the divisors in the message are a courtesy: the exercise asks for the two numbers"},
    "split_heads": {
        "in: if h < 1 or": "h < 1 is never drawn, and for a remainder view raises by itself",
        "'if h < 1 or d_model % h != 0:' dropped": "view raises by itself, and any exception is accepted",
    },
    "operator_schmidt_rank": {"first two exchanged": "a matrix and its transpose have one rank"},
    "is_direct_sum": {"normalize(rows, dim=1)' dropped": "rows whose lengths differ by many orders of magnitude are never drawn"},
    "principal_angles": {"first two exchanged: (a, b)": "the angles do not depend on the order of the two subspaces"},
    "load_layer": {
        "('weight', 'bias')": "the order in which the eight tensors are loaded",
        "True in: layer.load_state_dict": "copies of the tensors instead of the tensors",
    },
    "MultiHeadAttention": {
        "'if d_model % h != 0:' dropped": "unflatten raises by itself, and any exception is accepted",
        "False in: self.w_k = ": "a bias of the keys adds one number to a whole row of scores, and the softmax does not see it",
    },
}


def is_guard(words: str) -> bool:
    """A check of arguments that exercises never draw. Those of divisibility are drawn, so they do not count."""
    return "%" not in words and any(part in words for part in ("'if ", "in: if ", "in: kind = "))


@pytest.mark.slow
@pytest.mark.parametrize("name", names())
def test_mutants_are_caught(name):
    reference, allowed = exercises()[name].reference, EQUIVALENT.get(name, {})
    total, passed = 0, []
    for words, mutant in mutants(reference):
        total += 1
        if all(examine(name, mutant, seed=seed).passed for seed in range(2)):
            passed.append(words)
    assert total > 0
    survivors = [words for words in passed if not is_guard(words) and not any(part in words for part in allowed)]
    assert not survivors, f"{len(survivors)} of {total} mutants of {name} pass: {survivors}"
