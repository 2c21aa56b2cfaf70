"""Sentences with hand-made links between their words, and how well a head's pattern follows the links.

The method is that of Clark et al., "What Does BERT Look At?", BlackboxNLP 2019, section 4.2: a head predicts, for each
word, the other word that it gives most weight to. [CLS] and [SEP] are no words.
"""
from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

import multihead as mh

DATA = Path(__file__).with_name("data")
Case = tuple[int, int, int]  # sentence, word that looks, word to be found


@dataclass(frozen=True)
class Link:
    """From the word at position `dependent` to the word at position `governor` that it belongs to."""

    relation: str
    dependent: int
    governor: int


@dataclass(frozen=True)
class Sentence:
    """A text and the links between its words."""

    text: str
    links: tuple[Link, ...]


@dataclass(frozen=True)
class Relation:
    """Links of some kinds, read from the dependent to the governor."""

    name: str
    kinds: tuple[str, ...]

    def cases(self) -> list[Case]:
        """(sentence, word that looks, word to be found) of each link."""
        return [(number, link.dependent, link.governor) for number, sentence in enumerate(sentences())
                for link in sentence.links if link.relation in self.kinds]

    def best_offset(self) -> tuple[int, int]:
        """The distance that most links have, and how many have it: as far as a head gets that only counts words."""
        return Counter(target - source for _, source, target in self.cases()).most_common(1)[0]


RELATIONS = (
    Relation("subject → verb", ("subj",)), Relation("object → verb", ("obj",)),
    Relation("noun → its preposition", ("pobj",)), Relation("determiner → noun", ("det",)),
    Relation("pronoun → antecedent", ("coref",)), Relation("possessive → noun", ("poss",)),
    Relation("adjective → noun", ("amod",)),
)
GOVERNED = Relation("noun → verb or preposition", ("obj", "pobj"))


@cache
def sentences() -> tuple[Sentence, ...]:
    """The forty sentences of data/sentences.txt."""
    return tuple(_sentence(line) for line in _lines("sentences.txt"))


@cache
def pairs(heading: str) -> tuple[tuple[str, str], ...]:
    """The pairs of sentences under [heading] in data/pairs.txt."""
    lines = _lines("pairs.txt")
    start = lines.index(f"[{heading}]") + 1
    end = next((i for i in range(start, len(lines)) if lines[i].startswith("[")), len(lines))
    return tuple(tuple(line.split(" | ")) for line in lines[start:end])


def _lines(name: str) -> list[str]:
    text = (DATA / name).read_text(encoding="utf-8")
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def _sentence(line: str) -> Sentence:
    text, links = line.split(" | ")
    words, parts = mh.split_words(text), links.split()

    def position(name: str) -> int:
        word, _, occurrence = name.partition(".")
        return [i for i, other in enumerate(words) if other == word][int(occurrence or 1) - 1]
    return Sentence(text, tuple(Link(relation, *map(position, link.split(">")))
                                for relation, link in zip(parts[::2], parts[1::2])))


# Is it an object head?

def modifiers_of_governed_nouns() -> list[Case]:
    """From each determiner, adjective and possessive of an object to the verb or preposition that governs the object."""
    found = []
    for number, sentence in enumerate(sentences()):
        governor = {link.dependent: link.governor for link in sentence.links if link.relation in GOVERNED.kinds}
        found += [(number, link.dependent, governor[link.governor]) for link in sentence.links
                  if link.relation in ("det", "amod", "poss") and link.governor in governor]
    return found


def nearest_to_the_left() -> tuple[int, int]:
    """Of how many objects the governor is the nearest verb or preposition before it, and of how many in all.

    A word counts as a verb or preposition here if a subject or an object is linked to it.
    """
    right = total = 0
    for sentence in sentences():
        governors = {link.governor for link in sentence.links if link.relation in ("obj", "pobj", "subj")}
        for link in sentence.links:
            if link.relation in GOVERNED.kinds:
                total += 1
                right += link.governor == max((word for word in governors if word < link.dependent), default=None)
    return right, total


# A head's prediction, and whether it is right

def word_maps(maps: torch.Tensor, spans: list[range]) -> torch.Tensor:
    """Maps [..., T, T] of pieces as maps of words, [..., n, n].

    The weight on a word is the sum over its pieces; that of a word that looks is the mean over its pieces.
    """
    part = torch.zeros(len(spans), maps.shape[-1])  # [n, T]
    for word, span in enumerate(spans):
        part[word, list(span)] = 1
    return part / part.sum(1, keepdim=True) @ maps @ part.T  # [..., n, n]


def found(maps: torch.Tensor, spans: list[range]) -> torch.Tensor:
    """For each word the other word with most weight: maps [..., T, T] -> [..., n]."""
    words = word_maps(maps, spans)  # [..., n, n]
    itself = torch.eye(words.shape[-1], dtype=torch.bool)
    return words.masked_fill(itself, -1).argmax(-1)


def hits(cases: list[Case], predictions: list[torch.Tensor]) -> torch.Tensor:
    """Whether each head finds the word in each case: [n, L, h], from the predictions [L, h, words] of each sentence."""
    return torch.stack([predictions[number][..., source] == target for number, source, target in cases])


def wilson(right: int, n: int) -> tuple[float, float]:
    """The 95 % interval for a share of which `right` of n draws are a sample.

    Source: Wilson, "Probable Inference, the Law of Succession, and Statistical Inference", 1927.
    """
    z = 1.96
    share, slack = right / n, z**2 / n
    half = z * math.sqrt(share * (1 - share) / n + slack / (4 * n))
    return (share + slack / 2 - half) / (1 + slack), (share + slack / 2 + half) / (1 + slack)


def chosen(scores: torch.Tensor, half: torch.Tensor) -> torch.Tensor:
    """For each case the number, 0 to L h - 1, of the head that is best on the cases of the other half: [n].

    scores: [n, L, h]    half: [n], boolean.
    """
    flat = scores.float().flatten(1)  # [n, L h]
    return torch.where(half, flat[~half].mean(0).argmax(), flat[half].mean(0).argmax())  # [n]


def cross_fitted(scores: torch.Tensor, half: torch.Tensor) -> torch.Tensor:
    """Each case's score under the head that is best on the cases of the other half: [n].

    scores: [n, L, h]    half: [n], boolean.
    The best of 72 heads on some cases looks better on those cases than it is.
    """
    return scores.float().flatten(1).gather(1, chosen(scores, half)[:, None])[:, 0]
