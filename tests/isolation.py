"""One call in a fresh process, of which nothing is left afterwards."""

from course_utils.processes.client import once_more
from course_utils.processes.workers import Worker


def isolated(function, *args, deadline, on_output=None, **options):
    """The `Result`; `options` are those of `Worker`."""

    def attempt():
        with Worker(**options) as worker:
            return worker.call(function, *args, deadline=deadline, on_output=on_output)

    return once_more(attempt)
