"""Every private name of torch that the course uses: where torch keeps it, and what it is for.

    from course_utils import torch_private
    torch_private.current_graph_task_id()  # torch._C._current_graph_task_id
    torch_private.version(tensor)          # tensor._version

A name is fetched when it is first asked for, which imports the part of torch that it is in and no other.
Another version of torch may have another name, or none: then what needs it raises `Gone`, which says so, and
the rest of the course works. A new version is a matter of this file.

Two kinds of private names are not here. Operators (`aten._softmax`) are named as the dispatcher names them,
where they are counted. Methods that torch calls if a class has them stand in that class.
"""

import functools
import pkgutil
import sys
from collections.abc import Callable
from typing import Any

# Parts of torch by name: they are looked for among what is imported, or on the stack, or imported beforehand.
COMPILE = "torch._compile"  # what enters the compiler
DYNAMO = "torch._dynamo"  # the compiler: what makes graphs of Python
COMPILE_FX = "torch._inductor.compile_fx"  # what makes kernels of graphs
INDUCTOR_CONFIG = "torch._inductor.config"  # its settings
SYMBOLIC_SHAPES = "torch.fx.experimental.symbolic_shapes"  # sizes that are left open
FUNCTORCH = "torch._functorch"  # torch.func
OPERATORS = "torch._ops"  # what calls an operator
TENSOR = "torch._tensor"  # the methods of tensors that are written in Python
SWITCHES = ("torch.utils._contextlib", "torch.autograd.grad_mode", "torch._jit_internal")  # no_grad
TRITON = "torch.utils._triton"  # what it has found out about GPUs

# Names of attributes, where an object is asked for all that it has, or one is set.
SAVED = "_saved_"  # what a node of a graph keeps begins so: `_saved_self`
RAW_SAVED = "_raw_saved_"  # the same, packed
TABLES = ("_parameters", "_buffers", "_modules")  # of a module
TENSOR_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")  # of a tensor
OWN_TIMER = "_do_bench"  # of Triton's autotuner: how whoever wrote the kernel times it
NOT_COMPILED = "_torchdynamo_disable"  # a function that has it is not compiled into a graph
COMPILED_FROM = "_orig_mod"  # what torch.compile calls the module that it was given
LOADER_ITERATOR = "_iterator"  # of a DataLoader, while its workers stay
LOADER_BEGINS = "_get_iterator"  # what its `__iter__` calls for a new one

# The name here: what it is for, and where it is, as "module:name". All of `torch._C` comes with torch.
_NAMES = {
    # Calls without torch's detours
    "DisableTorchFunction": ("no function mode sees what is called inside", "torch:_C.DisableTorchFunction"),
    "DisableTorchFunctionSubclass": (
        "no class of the reader's answers for a tensor inside",
        "torch:_C.DisableTorchFunctionSubclass",
    ),
    # Modes that see every operator, and operators
    "TorchDispatchMode": ("sees every operator", "torch.utils._python_dispatch:TorchDispatchMode"),
    "push_mode": ("enters such a mode", "torch.utils._python_dispatch:_push_mode"),
    "pop_mode": ("leaves it", "torch.utils._python_dispatch:_pop_mode"),
    "disable_current_modes": (
        "runs code that no such mode sees",
        "torch.utils._python_dispatch:_disable_current_modes",
    ),
    "is_wrapper": (
        "tells tensors that are made of tensors",
        "torch.utils._python_dispatch:is_traceable_wrapper_subclass",
    ),
    "is_wrapper_class": (
        "tells classes of tensors that are made of tensors",
        "torch.utils._python_dispatch:is_traceable_wrapper_subclass_type",
    ),
    "count_operator_modes": ("counts the modes for operators", "torch:_C._len_torch_dispatch_stack"),
    "operator_mode": ("gives one of them", "torch:_C._get_dispatch_stack_at"),
    "count_function_modes": ("counts the modes for functions", "torch:_C._len_torch_function_stack"),
    "function_mode": ("gives one of them", "torch:_C._get_function_stack_at"),
    "DeviceContext": ("the mode that is the default device", "torch.utils._device:DeviceContext"),
    "OpOverload": ("an operator, as it is called", "torch._ops:OpOverload"),
    "OpOverloadPacket": ("all operators of one name", "torch._ops:OpOverloadPacket"),
    "OpNamespace": ("a part of torch.ops", "torch._ops:_OpNamespace"),
    "HigherOrderOperator": ("an operator that takes functions", "torch._ops:HigherOrderOperator"),
    "has_kernel": (
        "tells whether an operator has a kernel for a device",
        "torch:_C._dispatch_has_kernel_for_dispatch_key",
    ),
    "is_operator": ("tells whether the dispatcher knows an operator", "torch:_C._dispatch_has_kernel"),
    # Autograd
    "current_graph_task_id": ("tells whether a backward is running", "torch:_C._current_graph_task_id"),
    "current_node": ("the node whose backward is running", "torch:_C._current_autograd_node"),
    "next_sequence_nr": ("the number that the next node gets", "torch:_C._autograd._get_sequence_nr"),
    "top_saved_tensors_hooks": (
        "the hooks through which tensors are saved",
        "torch:_C._autograd._top_saved_tensors_default_hooks",
    ),
    "pop_saved_tensors_hooks": ("ends them", "torch:_C._autograd._pop_saved_tensors_default_hooks"),
    "set_versions": (
        "puts back how often the memory of tensors was written to",
        "torch:_C._autograd._unsafe_set_version_counter",
    ),
    "engine_run_backward": (
        "stands on the stack above what the engine calls",
        "torch.autograd.graph:_engine_run_backward",
    ),
    "make_grads": ("makes the 1 that a backward starts with", "torch.autograd:_make_grads"),
    # Tensors and modules
    "default_tolerances": (
        "what torch.testing allows two tensors to differ by",
        "torch.testing._comparison:default_tolerances",
    ),
    "print_options": ("how tensors are printed", "torch._tensor_str:PRINT_OPTS"),
    "tree_leaves": ("all that is in lists and dictionaries", "torch.utils._pytree:tree_leaves"),
    "tree_map": ("the same lists with other things in them", "torch.utils._pytree:tree_map"),
    "BatchNorm": ("the base of batch norms", "torch.nn.modules.batchnorm:_BatchNorm"),
    "Conv": ("the base of convolutions", "torch.nn.modules.conv:_ConvNd"),
    "Dropout": ("the base of dropouts", "torch.nn.modules.dropout:_DropoutNd"),
    "global_forward_hooks": (
        "hooks before and after the forward of all modules",
        "torch.nn.modules.module:_global_forward_hooks",
    ),
    "global_forward_pre_hooks": ("the same before", "torch.nn.modules.module:_global_forward_pre_hooks"),
    "global_backward_hooks": ("the same after backward", "torch.nn.modules.module:_global_backward_hooks"),
    "global_backward_pre_hooks": (
        "the same before backward",
        "torch.nn.modules.module:_global_backward_pre_hooks",
    ),
    # Loaders
    "MapFetcher": ("reads items by index", "torch.utils.data._utils.fetch:_MapDatasetFetcher"),
    "IterableFetcher": ("reads items in turn", "torch.utils.data._utils.fetch:_IterableDatasetFetcher"),
    "pin_memory": ("pins a batch", "torch.utils.data._utils.pin_memory:pin_memory"),
    "loader_worker": ("knows which worker this process is", "torch.utils.data._utils:worker"),
    # Several processes
    "Work": ("a collective that is under way", "torch:_C._distributed_c10d.Work"),
    "Future": ("the base of torch.futures.Future", "torch:_C.Future"),
    "default_store": ("the store of the ranks", "torch.distributed.distributed_c10d:_get_default_store"),
    # What the compiler leaves alone
    "set_frame_callback": ("switches the compiler off and on", "torch:_C._dynamo.eval_frame.set_eval_frame"),
    "set_code_strategy": (
        "lets the compiler skip a function",
        "torch:_C._dynamo.eval_frame.set_code_exec_strategy",
    ),
    "FrameStrategy": ("says how it is skipped", "torch:_C._dynamo.eval_frame._FrameExecStrategy"),
    "FrameAction": ("says what is done to it", "torch:_C._dynamo.eval_frame._FrameAction"),
    "CompileWrapper": ("what torch.compile calls", "torch:_TorchCompileInductorWrapper"),
    # What the compiler tells
    "lookup_backend": ("a backend by its name", "torch._dynamo:lookup_backend"),
    "aot_autograd": ("a backend for forward and backward", "torch._dynamo.backends.common:aot_autograd"),
    "BackendCompilerFailed": ("what a backend raised", "torch._dynamo.exc:BackendCompilerFailed"),
    "OptimizedModule": ("what torch.compile makes of a module", "torch._dynamo:OptimizedModule"),
    "register_bytecode_hook": (
        "tells of each function that was compiled",
        "torch._dynamo.convert_frame:register_bytecode_hook",
    ),
    "input_codes": ("what the compiler has looked at", "torch._dynamo.convert_frame:input_codes"),
    "CompileContext": ("names the compilation that is under way", "torch._guards:CompileContext"),
    "compiler_counters": ("what the compiler counts", "torch._dynamo.utils:counters"),
    "graph_break_reasons": ("why graphs ended", "torch._dynamo.utils:graph_break_reasons"),
    "guard_failures": ("which guards have failed", "torch._dynamo.utils:guard_failures"),
    "cache_entries": (
        "what was compiled of a function, with its guards",
        "torch._dynamo.eval_frame:_debug_get_cache_entry_list",
    ),
    "dynamo_guards": ("takes the time of new guards", "torch._dynamo:guards"),
    "set_logs": ("what the compiler logs", "torch._logging:set_logs"),
    # Kernels and files
    "kernel_metrics": ("counts the kernels that were made", "torch._inductor:metrics"),
    "pick_vec_isa": ("finds the vector instructions", "torch._inductor.cpu_vec_isa:pick_vec_isa"),
    "torch_key": ("a hash of torch's source", "torch._inductor.codecache:torch_key"),
    "aoti_compile_and_package": (
        "compiles an exported program into a package",
        "torch._inductor:aoti_compile_and_package",
    ),
    "script_types": (
        "what torch.jit.script knows of classes",
        "torch.jit._recursive:concrete_type_store.type_store",
    ),
    "ONNXRegistry": (
        "what ONNX calls each operator",
        "torch.onnx._internal.exporter._registration:ONNXRegistry",
    ),
    "onnx_decompositions": (
        "how operators that ONNX has none for are taken apart",
        "torch.onnx._internal.exporter._decomp:create_onnx_friendly_decomposition_table",
    ),
    "fetch_composites": (
        "gives the operators that are made of others their names",
        "torch._export.utils:_materialize_cpp_cia_ops",
    ),
}

# The function here: what it gives, and the attribute of its argument that it reads; one that ends in () is
# called.
_ATTRIBUTES = {
    "version": ("how often the memory of a tensor was written to", "_version"),
    "storage_key": ("what tells a storage from another while both live", "_cdata"),
    "sparse_indices": ("the tensor of places inside a sparse one", "_indices()"),
    "sparse_values": ("the tensor of values inside a sparse one", "_values()"),
    "sequence_nr": ("the number of a node, in the order of their making", "_sequence_nr()"),
    "input_metadata": ("shapes of the gradients that come to a node", "_input_metadata"),
    "backward_class": ("the class of the nodes that a Function makes", "_backward_cls"),
    "forward_level": ("how deep in forward-mode derivatives `forward_ad` is", "_current_level"),
    "parameters": ("a module's own parameters, None among them", "_parameters"),
    "buffers": ("a module's own buffers, None among them", "_buffers"),
    "submodules": ("the modules right below a module, None among them", "_modules"),
    "unsaved_buffers": ("names of buffers that the state leaves out", "_non_persistent_buffers_set"),
    "forward_hooks": ("hooks after the forward of a module", "_forward_hooks"),
    "forward_pre_hooks": ("hooks before the forward of a module", "_forward_pre_hooks"),
    "backward_hooks": ("hooks after the backward of a module or a tensor", "_backward_hooks"),
    "backward_pre_hooks": ("hooks before the backward of a module", "_backward_pre_hooks"),
    "compiled_from": ("the module that torch.compile was given", COMPILED_FROM),
    "dataset_fetcher": ("what reads the items of a loader without workers", "_dataset_fetcher"),
    "shutdown_workers": ("ends the workers of a loader's iterator", "_shutdown_workers()"),
    "schema": ("what an operator takes and gives, and writes to", "_schema"),
    "packet_name": ("the name that several operators share", "_qualified_op_name"),
    "has_method": ("whether a script has a method of that name, as a function", "_c._has_method"),
}


class Gone(RuntimeError):
    """The torch that is installed has no such name."""

    def __init__(self, name: str, use: str, asked_by: str) -> None:
        import torch

        needs = f", which `{asked_by}` needs ({use})"
        super().__init__(f"this version of torch ({torch.__version__}) has no `{name}`{needs}")


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        use, where = _NAMES[name]
        try:
            found = pkgutil.resolve_name(where)
        except (ImportError, AttributeError) as error:
            # What torch itself misses (onnx, say) is another matter.
            if isinstance(error, ImportError) and not (error.name or "torch").startswith("torch"):
                raise
            raise Gone(where.replace(":", "."), use, _asking()) from error
    elif name in _ATTRIBUTES:
        found = _reader(*_ATTRIBUTES[name])
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found  # from here on it is found without this function
    return found


def _reader(use: str, attribute: str) -> Callable[[Any], Any]:
    name, called = attribute.removesuffix("()"), attribute.endswith("()")

    def read(owner: Any) -> Any:
        try:
            value = functools.reduce(getattr, name.split("."), owner)
        except AttributeError as error:
            kind = owner if isinstance(owner, type) else type(owner)
            raise Gone(f"{kind.__name__}.{name}", use, _asking()) from error
        return value() if called else value

    return read


def _asking() -> str:
    """The module whose code asks for a name of this one."""
    return sys._getframe(2).f_globals.get("__name__", "")
