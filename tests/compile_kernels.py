"""Compiles for a GPU, which need not be there, what the solutions of lesson 15 launch; prints what came of
each, as JSON. To be run where `TRITON_INTERPRET` is not set.

A solution is called as the exercise calls it, on the CPU. Instead of a launch its kernel is compiled, for
the types of what it was given.
"""

import importlib.util
import itertools
import json
import sys
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parents[1] / "solutions" / "kernels"
POINTERS = {torch.float32: "*fp32", torch.int32: "*i32", torch.int64: "*i64"}

number = itertools.count()


def random(*shape):
    return torch.randn(shape, requires_grad=True)


CALLS = {
    "add_kernel": lambda answer: answer(random(100), random(100)),
    "softmax_kernel": lambda answer: [answer(random(2, n)) for n in (100, 5000)],
    "transpose_kernel": lambda answer: answer(random(20, 30)),
    "matmul_kernel": lambda answer: answer(random(40, 50), random(50, 30), 16),
    "attention_kernel": lambda answer: answer(*random(3, 2, 40, 20)),
    "dropout_kernel": lambda answer: answer.apply(random(100), 0.5, 3).sum().backward(),
    "rms_norm_kernel": lambda answer: answer.apply(random(4, 100), random(100)).sum().backward(),
    "repair_race": lambda answer: answer(torch.randint(9, (100,)), 9),
    "my_triton_op": lambda answer: answer(f"mine::op{next(number)}")(random(9)).sum().backward(),
}


def compile_in_place_of_launches():
    """From here on a launch compiles its kernel, and ends there. Returns the names of those, as they come."""
    import triton  # not where the tests are collected: there it may have to be imported to interpret
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    launched = []

    def compiled(kernel, *args, grid, warmup, **constants):
        given = dict(zip(kernel.arg_names, args, strict=False)) | constants
        fixed = {p.name: given[p.name] for p in kernel.params if p.is_constexpr or given[p.name] is None}
        types = {name: "constexpr" if name in fixed else _type(value) for name, value in given.items()}
        triton.compile(ASTSource(kernel, types, fixed), target=GPUTarget("cuda", 90, 32))
        launched.append(kernel.__name__)

    def stop_at_ptx(*given):
        if given:
            given[1]["cubin"] = lambda ptx, metadata: ptx.encode()
        return "ptx", "ptx"

    triton.knobs.runtime.add_stages_inspection_hook = stop_at_ptx
    triton.JITFunction.run = compiled
    return launched


def main():
    launched, found = compile_in_place_of_launches(), {}
    for name, call in CALLS.items():
        for answer in answers(name):
            launched.clear()
            try:
                call(answer)
                told = "" if launched else "no kernel was launched"
            except Exception as error:
                told = f"{type(error).__name__}: {error}"
            found.setdefault(name, {})[answer.__name__] = told
    print(json.dumps(found))


def answers(name):
    spec = importlib.util.spec_from_file_location(name, HERE / f"{name}.py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (reference,) = (one for key, one in vars(module).items() if key in (name, name.title().replace("_", "")))
    return [reference, *module.also_right]


def _type(value):
    if isinstance(value, torch.Tensor):
        return POINTERS[value.dtype]
    return "fp32" if isinstance(value, float) else "i32"


if __name__ == "__main__":
    main()
