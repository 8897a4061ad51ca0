"""What holds for every test: the reader's record and settings are left alone."""

import os
import signal
import tempfile

import pytest


def pytest_configure(config):
    # Before any test file is imported: processes that these start inherit it.
    folder = tempfile.TemporaryDirectory(prefix="course-tests-")
    config.add_cleanup(folder.cleanup)
    os.environ["COURSE_RECORD"] = f"{folder.name}/record.jsonl"
    for name in ("COURSE_ROOT", "COURSE_DEVICE"):
        os.environ.pop(name, None)
    # Read when torch is loaded. Threads of several processes at a time would wait for each other in loops
    # that take the processors away from those that they wait for.
    os.environ["OMP_WAIT_POLICY"] = "passive"
    # Where a shell has started this in the background it ignores interrupts, and tests send some.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _an_example_of_its_own():
    """No test begins with the example of the one before."""
    from course_utils.exercise.given import example_of_its_own

    with example_of_its_own():
        yield


# What takes longest together, first: what comes last is shared out in small parts.
FIRST = ("test_check_command", "test_notebooks", "test_browser", "test_workers", "test_ranks", "test_grader")


def pytest_collection_modifyitems(items):
    def place(item):
        name = item.path.stem
        early = next((i for i, start in enumerate(FIRST) if name.startswith(start)), len(FIRST))
        return name == "test_laws", early

    items.sort(key=place)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Tests that share what was costly to make run in one process: those of an exercise, of a lesson, and
    of any other file."""
    from xdist.scheduler import LoadScopeScheduling

    class Sharing(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            file, _, test = nodeid.partition("::")
            if file.endswith(("test_laws.py", "test_notebooks.py")):
                return file + test.partition("[")[2]
            return file

    return Sharing(config, log)
