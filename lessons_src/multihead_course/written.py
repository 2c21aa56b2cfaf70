"""What `course` wrote into an instructor's folder, so that it replaces that and nothing else."""
from __future__ import annotations

import hashlib
import json
from pathlib import Path

RECORD = ".course.json"


class Written:
    """The record in a course folder: the name of each file that was written there, and a digest of its bytes.

    Names are relative to the folder, with forward slashes.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        record = folder / RECORD
        try:
            self._digests = json.loads(record.read_text(encoding="utf-8")) if record.exists() else {}
        except ValueError:
            raise ValueError(f"{record} is damaged, so nobody can tell which files are yours; delete it, "
                             "move your own files away, and try again.") from None

    def names(self, below: str) -> list[str]:
        """Files on record whose names start with `below`."""
        return sorted(name for name in self._digests if name.startswith(below))

    def is_ours(self, name: str) -> bool:
        """Whether the file is there, byte for byte as it was written."""
        path = self.folder / name
        return path.is_file() and self._digests.get(name) == _digest(path.read_bytes())

    def in_the_way(self, name: str, content: bytes) -> bool:
        """Whether `content` would replace what another hand has made or edited."""
        path = self.folder / name
        same = path.is_file() and path.read_bytes() == content
        return path.exists() and not same and not self.is_ours(name)

    def write(self, name: str, content: bytes) -> bool:
        """Puts the file there and on record. True if that changed it. Ask `in_the_way` first."""
        path = self.folder / name
        changed = not path.exists() or path.read_bytes() != content
        if changed:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        if self._digests.get(name) != _digest(content):
            self._digests[name] = _digest(content)
            self._save()
        return changed

    def remove(self, name: str) -> None:
        """Deletes the file if it is ours. If it is not, it stays, and is off the record."""
        if self.is_ours(name):
            (self.folder / name).unlink()
        del self._digests[name]
        self._save()

    def _save(self) -> None:
        text = json.dumps(self._digests, indent=1, sort_keys=True)
        (self.folder / RECORD).write_text(text + "\n", encoding="utf-8", newline="\n")


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
