"""What `import course_utils` costs over `import torch`, each in a fresh interpreter."""

import subprocess
import sys

from tests.benchmarks.table import Row, interleaved


def rows() -> list[Row]:
    def run(statement: str) -> None:
        subprocess.run([sys.executable, "-c", statement], check=True)

    torch, course = interleaved(lambda: run("import torch"), lambda: run("import course_utils"), 9)
    return [
        Row(
            "import course_utils / import torch", course / torch, 1.1, detail=f"{torch:.2f} s, {course:.2f} s"
        )
    ]
