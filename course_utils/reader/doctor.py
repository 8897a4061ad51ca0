"""`course doctor`: what this machine can and cannot run of the course, and what to install."""

import textwrap
from dataclasses import dataclass, field

from course_utils.machine import Machine
from course_utils.words import gigabytes

COMPILER = {
    "Debian, Ubuntu": "sudo apt install g++",
    "conda": "conda install -c conda-forge cxx-compiler",
    "macOS": "xcode-select --install",
}
CMAKE = {
    "Debian, Ubuntu": "sudo apt install cmake make",
    "conda": "conda install -c conda-forge cmake make",
    "macOS": "brew install cmake",
}
OTHER_BUILDS = "https://pytorch.org/get-started/locally shows the command for another build of torch."


@dataclass(frozen=True)
class Advice:
    """One thing that the course wants to do. `state` is "ok" or "missing". `install` maps where one is
    ("conda", "macOS") to the command that helps there; it is empty where nothing is missing and where no
    command helps."""

    topic: str
    state: str
    text: str
    install: dict[str, str] = field(default_factory=dict)


def report(machine: Machine) -> str:
    """What the machine has, then what follows from it, as text of at most 100 columns."""
    cores = "1 core" if machine.cores == 1 else f"{machine.cores} cores"
    lines = [
        f"Python {machine.python} · torch {machine.torch} (built for {machine.torch_build})",
        f"{machine.platform} · {cores} · {gigabytes(machine.memory)} of memory",
        f"Devices: {', '.join(machine.devices)}",
    ]
    for advised in advice(machine):
        # A command or an address that is cut in two cannot be copied.
        wrapped = textwrap.wrap(advised.text, width=96, break_long_words=False, break_on_hyphens=False)
        mark = "✓" if advised.state == "ok" else "✗"
        lines += ["", f"{mark} {advised.topic}", *(f"    {line}" for line in wrapped)]
        lines += [f"      {where}: {command}" for where, command in advised.install.items()]
    return "\n".join(lines)


def advice(machine: Machine) -> list[Advice]:
    """What the course can and cannot run on a machine, and what to install there."""
    return [_gpu(machine), _compile(machine), _cpp(machine), _ranks(machine), _packages(machine)]


def _gpu(machine: Machine) -> Advice:
    topic = "GPU sections"
    without = 'Cells titled "On a GPU" show a recorded run, and checks run on the CPU.'
    if "cuda" in machine.devices or "mps" in machine.devices:
        names = dict.fromkeys(machine.gpus) if "cuda" in machine.devices else ["the Apple GPU"]
        on = ", ".join(names) or "the GPU"
        return Advice(topic, "ok", f'Cells titled "On a GPU" run here, on {on}, and checks run there too.')
    if not machine.gpus:
        return Advice(topic, "missing", f"torch finds no GPU here. {without}")
    card = machine.gpus[0]
    if not machine.torch_build.startswith("CUDA"):
        text = f"There is an {card} here, but this torch is built for {machine.torch_build}. {OTHER_BUILDS}"
    elif machine.driver_is_too_old:
        text = (
            f"There is an {card} here, but its driver supports CUDA {machine.driver_cuda} and this torch is "
            f"built for {machine.torch_build}. A newer driver helps, or an older CUDA: {OTHER_BUILDS}"
        )
    else:
        text = f"There is an {card} here, but torch does not see it. Does CUDA_VISIBLE_DEVICES hide it?"
    return Advice(topic, "missing", f"{text} {without}")


def _compile(machine: Machine) -> Advice:
    topic = "torch.compile"
    trouble = machine.compiler_trouble
    if machine.compiler and not trouble:
        return Advice(topic, "ok", f"Code for the CPU is compiled with {machine.compiler}.")
    lost = "Until there is, torch.compile stops on the CPU, and what needs it is reported as not checked."
    if machine.compiler is None:
        name = machine.compiler_name
        text = f"It looks for a C++ compiler called {name} and finds none on the PATH. {lost}"
        return Advice(topic, "missing", text, _on(machine, COMPILER))
    if "Python.h" in trouble:
        minor = machine.python.rpartition(".")[0]
        install = {"Debian, Ubuntu": f"sudo apt install python{minor}-dev"}
        install["conda"] = f"conda install -c conda-forge python={minor}"
        text = f"{machine.compiler} finds no Python.h, which every compiled function includes. {lost}"
        return Advice(topic, "missing", text, _on(machine, install))
    text = f"{machine.compiler} does not compile what torch writes ({trouble}). {lost}"
    return Advice(topic, "missing", text, _on(machine, COMPILER))


def _cpp(machine: Machine) -> Advice:
    topic = "C++ programs"
    lacking = {}
    if machine.compiler is None:
        lacking["a C++ compiler"] = COMPILER
    if machine.cmake is None:
        lacking["CMake"] = CMAKE
    elif machine.build_tool is None:
        lacking["make"] = CMAKE
    if not lacking:
        return Advice(topic, "ok", f"An exported model can be loaded from C++, built with {machine.cmake}.")
    commands: dict[str, list[str]] = {}
    for install in lacking.values():
        for where, command in _on(machine, install).items():
            commands.setdefault(where, []).append(command)
    text = f"To load an exported model from C++, {' and '.join(lacking)} must be on the PATH."
    return Advice(topic, "missing", text, {where: " && ".join(all) for where, all in commands.items()})


def _ranks(machine: Machine) -> Advice:
    topic = "Distributed training"
    if "gloo" not in machine.backends:
        text = f"This torch was built without gloo, through which ranks on the CPU talk. {OTHER_BUILDS}"
        return Advice(topic, "missing", text)
    on_gpus = "nccl" in machine.backends and "cuda" in machine.devices
    through = "gloo, on GPUs through NCCL" if on_gpus else "gloo"
    text = f"Ranks are real processes here and talk through {through}."
    if machine.cores == 1:
        text += " They share one core: expect them to be slow."
    return Advice(topic, "ok", text)


def _packages(machine: Machine) -> Advice:
    topic = "Packages"
    unmet = [package for package in machine.packages if not package.met]
    if not unmet:
        return Advice(topic, "ok", f"All {len(machine.packages)} that the course asks for are installed.")
    has = [f"{package.requirement} ({package.installed or 'not installed'})" for package in unmet]
    wanted = " ".join(f"'{package.requirement}'" for package in unmet)
    text = f"The course asks for {', '.join(has)}. Without all of them notebooks may not open or run."
    return Advice(topic, "missing", text, {"pip": f"python -m pip install {wanted}"})


def _on(machine: Machine, install: dict[str, str]) -> dict[str, str]:
    elsewhere = "Debian, Ubuntu" if machine.system == "Darwin" else "macOS"
    return {where: command for where, command in install.items() if where != elsewhere}
