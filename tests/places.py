"""Where things are."""
from pathlib import Path

from multihead.weights import LIGHT

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def has_weights() -> bool:
    """Whether the weights of lesson 06 are installed. Without them it runs, says so, and shows what was recorded."""
    file = LIGHT.installed()
    return file is not None and file.is_file()
