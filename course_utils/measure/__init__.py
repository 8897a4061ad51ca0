"""Instruments: what torch kept, allocated, called, waited for and compiled while some code ran.

    saved_bytes(fn, *args)      bytes that the result's graph keeps for backward
    live_bytes(fn, *args)       bytes still there afterwards, with the result and without it
    peak_bytes(fn, *args)       most bytes at one moment, by category
    step_timeline(fn, *args)    bytes alive at each operator of a step, by when they were made
    snapshot_timeline(snapshot) what torch.cuda.memory._snapshot() tells, as moments of bytes alive
    roofline(device)            bytes and floating-point operations a second that this machine reaches
    step_cost(step)             where a training step's time goes, by group, and its peak bytes
    step_limit(step)            the least time that a step can take here, and how close it is to that
    with operators() as ops     which operators ran, and how often
    with syncs() as found       where a GPU would have made Python wait
    with graphs_compiled() as c graphs, graph breaks, recompilations
    with traffic() as t         what this rank sent, received and waited for
    loading(loader, step)       when each batch was fetched, collated, waited for and stepped on
    record_run(fn, *args)       losses, gradient norms, rates and modes of a training run
    flops(fn, *args)            floating-point operations of the matrix products
    kernel(kernel, grid, *args) what a Triton kernel loads and stores: bytes, sectors, strays, races
    guard_kernels()             keeps kernels from memory that is not their tensors'
    with kernels() as launches  the same of every launch in a block
    time_ratio(a, b)            how much longer a takes than b, and how sure that is
    same_storage, storage_bytes

Bytes and counts are the same on the CPU and on a GPU: they are those of the operators, not of an allocator
that rounds up. It imports no other room.
"""

from course_utils.measure.compiled import graphs_compiled
from course_utils.measure.kernel import guard_kernels, kernel, kernels
from course_utils.measure.limit import step_limit
from course_utils.measure.loading import loading
from course_utils.measure.memory import live_bytes, peak_bytes, snapshot_timeline
from course_utils.measure.operators import Operators, flops, operators
from course_utils.measure.roofline import roofline
from course_utils.measure.saved import saved_bytes
from course_utils.measure.step_cost import StepCost, step_cost
from course_utils.measure.steps import step_timeline
from course_utils.measure.storage import same_storage, storage_bytes
from course_utils.measure.syncs import syncs
from course_utils.measure.timing import time_ratio
from course_utils.measure.traffic import Traffic, traffic
from course_utils.measure.training import record_run

__all__ = [
    "Operators",
    "StepCost",
    "Traffic",
    "flops",
    "graphs_compiled",
    "guard_kernels",
    "kernel",
    "kernels",
    "live_bytes",
    "loading",
    "operators",
    "peak_bytes",
    "record_run",
    "roofline",
    "same_storage",
    "saved_bytes",
    "snapshot_timeline",
    "step_cost",
    "step_limit",
    "step_timeline",
    "storage_bytes",
    "syncs",
    "time_ratio",
    "traffic",
]
