"""What holds for every test: the reader's record and settings are left alone."""

import os
import tempfile


def pytest_configure(config):
    # Before any test file is imported: processes that these start inherit it.
    folder = tempfile.TemporaryDirectory(prefix="course-tests-")
    config.add_cleanup(folder.cleanup)
    os.environ["COURSE_RECORD"] = f"{folder.name}/record.sqlite"
    for name in ("COURSE_ROOT", "COURSE_DEVICE"):
        os.environ.pop(name, None)
