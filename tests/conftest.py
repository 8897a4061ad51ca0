"""What holds for every test: the reader's record and settings are left alone."""

import os
import tempfile

import pytest


def pytest_configure(config):
    # Before any test file is imported: processes that these start inherit it.
    folder = tempfile.TemporaryDirectory(prefix="course-tests-")
    config.add_cleanup(folder.cleanup)
    os.environ["COURSE_RECORD"] = f"{folder.name}/record.sqlite"
    for name in ("COURSE_ROOT", "COURSE_DEVICE"):
        os.environ.pop(name, None)


def pytest_collection_modifyitems(items):
    """Tests that share what was costly to make run in one process: those of an exercise, of a lesson, of a
    file with fixtures of its own."""
    for item in items:
        given = item.callspec.params if hasattr(item, "callspec") else {}
        shared = given.get("label") or getattr(given.get("lesson"), "slug", None) or item.path.stem
        item.add_marker(pytest.mark.xdist_group(shared))
