"""Files that tests are made of."""

from pathlib import Path


def write(root: Path, files: dict[str, str]) -> Path:
    """Writes texts by their paths below `root`, which is returned; folders are made."""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    return root
