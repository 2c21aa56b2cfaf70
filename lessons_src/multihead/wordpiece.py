"""WordPiece: text into pieces of words, as a BERT model without capital letters reads it.

Source: Devlin et al., "BERT", NAACL 2019; single characters are treated as by the tokenizer released with it.
Characters that are newer than one's tables of Unicode may be cut in another way by another program.
"""

import unicodedata
from dataclasses import dataclass
from functools import cache
from pathlib import Path

VOCABULARY = Path(__file__).with_name("data") / "minilm-vocab.txt"
FIRST, LAST, UNKNOWN = "[CLS]", "[SEP]", "[UNK]"
LONGEST_WORD = 100  # characters; a longer word is unknown
IDEOGRAPHS = [(0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F),
              (0x2B920, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F)]


@dataclass(frozen=True)
class Tokens:
    """A text as the model reads it.

    ids:    number of each piece in the vocabulary
    pieces: the pieces; [CLS] is the first and [SEP] the last, one that continues a word starts with ##
    words:  the words of the text
    spans:  for each word the positions of its pieces
    """

    ids: list[int]
    pieces: list[str]
    words: list[str]
    spans: list[range]


class WordPiece:
    """Cuts a text into words and each word, from the left, into the longest pieces in the model's vocabulary.

    number: {piece: its number}
    """

    def __init__(self):
        self.number = _vocabulary()

    def __call__(self, text):
        """The Tokens of a text. "[SEP]" in a text is read as the characters that it is made of."""
        words, pieces, spans = split_words(text), [FIRST], []
        for word in words:
            start = len(pieces)
            pieces += self.pieces(word)
            spans.append(range(start, len(pieces)))
        pieces.append(LAST)
        return Tokens([self.number[piece] for piece in pieces], pieces, words, spans)

    def pieces(self, word):
        """The longest known piece, then the longest that continues it, and so on; [UNK] if that fails."""
        if len(word) > LONGEST_WORD:
            return [UNKNOWN]
        found, start = [], 0
        while start < len(word):
            prefix = "##" if start else ""
            ends = range(len(word), start, -1)
            end = next((end for end in ends if prefix + word[start:end] in self.number), None)
            if end is None:
                return [UNKNOWN]
            found.append(prefix + word[start:end])
            start = end
        return found


def split_words(text):
    """Words in small letters without accents; punctuation marks and ideographs stand alone."""
    bare = unicodedata.normalize("NFD", "".join(map(_cleaned, text)))
    letters = (_spaced(letter).lower() for letter in bare if unicodedata.category(letter) != "Mn")
    return "".join(letters).split()


def _cleaned(letter):
    """A space for any white space, nothing for control and format characters."""
    if letter in "\t\n\r" or unicodedata.category(letter) == "Zs":
        return " "
    dropped = unicodedata.category(letter) in ("Cc", "Cf", "Co", "Cs") or letter == "\ufffd"
    return "" if dropped else f" {letter} " if _is_ideograph(letter) else letter


def _spaced(letter):
    """A punctuation mark between spaces, any other character as it is."""
    ascii_mark = letter.isascii() and letter.isprintable() and not letter.isalnum() and letter != " "
    return f" {letter} " if ascii_mark or unicodedata.category(letter).startswith("P") else letter


def _is_ideograph(letter):
    return any(first <= ord(letter) <= last for first, last in IDEOGRAPHS)


@cache
def _vocabulary():
    pieces = VOCABULARY.read_text(encoding="utf-8").rstrip("\n").split("\n")
    return {piece: number for number, piece in enumerate(pieces)}
