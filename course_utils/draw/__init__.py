"""Pictures of live objects: plain functions, data in, matplotlib figure out.

All draw with `picture`, `shapes`, `labels` and `palette`. It may import `measure` and `watching`.
"""

from course_utils.draw.allocator import allocator
from course_utils.draw.captures import captures
from course_utils.draw.checkpoints import checkpoints
from course_utils.draw.compiled import compiled
from course_utils.draw.exports import exports
from course_utils.draw.floats import floats
from course_utils.draw.graph import graph
from course_utils.draw.hooks import hooks
from course_utils.draw.kernel import kernel
from course_utils.draw.lanes import lanes
from course_utils.draw.latency import latency
from course_utils.draw.loading import loading
from course_utils.draw.memory import memory, memory_timeline
from course_utils.draw.modules import modules
from course_utils.draw.report_card import Change, report_card
from course_utils.draw.roofline import roofline, trace
from course_utils.draw.run import curves, run
from course_utils.draw.slopes import slopes
from course_utils.draw.storages import storages, walk
from course_utils.draw.strides import strides
from course_utils.draw.training import range_test, schedules, training

__all__ = [
    "Change",
    "allocator",
    "captures",
    "checkpoints",
    "compiled",
    "curves",
    "exports",
    "floats",
    "graph",
    "hooks",
    "kernel",
    "lanes",
    "latency",
    "loading",
    "memory",
    "memory_timeline",
    "modules",
    "range_test",
    "report_card",
    "roofline",
    "run",
    "schedules",
    "slopes",
    "strides",
    "storages",
    "trace",
    "training",
    "walk",
]
