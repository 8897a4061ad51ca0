"""What a function leaves in memory"""

import re

from course_utils.questions import Family

family = Family(
    section="Memory that nobody frees",
    asked="How many kilobytes are alive afterwards, before the garbage collector runs?",
)
VIEWS = ("{}[:10]", "{}[:10]", "{}[:10].clone()", "{}[:10].detach()")
GRAPHS = ("{}.exp().sum()", "{}.sin().sum()", "{}.exp().sum().item()", "{}.sin().sum().detach()")


@family.program
def function(draw, level):
    kinds = ["graph", "view" if level == 1 else "part", "cycle", "part", "view"][: max(level, 2)]
    lines, kept, names = [], [], iter("abcdegh")
    for kind in draw.sample(kinds, len(kinds)):
        name, size = next(names), draw.randrange(500, 10_001, 500)
        if kind == "cycle":
            lines += [f'{name} = {{"data": torch.ones({size})}}', f'{name}["me"] = {name}']
        elif kind == "graph":
            lines.append(f"{name} = torch.ones({size}, requires_grad=True)")
            kept.append(draw.choice(GRAPHS).format(name))
        else:
            lines.append(f"{name} = torch.ones({size})")
            kept.append(draw.choice(VIEWS).format(name))
            if kind == "part":
                part = next(names)
                lines += [f"{part} = {kept.pop()}", f"del {name}"]
                kept.append(part)
    body = "\n".join("    " + line for line in [*lines, f"return {', '.join(kept)}"])
    return f"from course_utils import measure\n\ndef f():\n{body}\n\nmeasure.live_bytes(f).held // 1000"


@family.belief
def a_small_view(run):
    """A view of ten elements keeps ten elements

    A view holds the whole storage, and so does what `detach` makes. `clone()` makes a small one of its own.

        x = torch.ones(1000)
        x[:10].untyped_storage().nbytes(), x[:10].clone().untyped_storage().nbytes()
    """
    return run.again(run.code.replace("[:10]", "[:10].clone()"))


@family.belief
def a_loss_is_a_number(run):
    """A sum or a loss is one number, so keeping it costs nothing

    It holds its graph, and the graph what backward needs. `item()` gives the number, `detach()` a tensor
    without the graph.

        from course_utils import measure
        w = torch.ones(1000, requires_grad=True)
        live = measure.live_bytes
        live(lambda: w.exp().sum()).held, live(lambda: w.exp().sum().item()).held
    """
    return run.again(re.sub(r"\.sum\(\)(?!\.)", ".sum().item()", run.code))


@family.belief
def del_frees(run):
    """`del x` frees the memory of `x`

    It takes away a name. The storage goes when nothing refers to it any more: no view, no graph.

        x = torch.ones(3)
        y = x.view(3)
        del x
        y
    """
    return run.again(re.sub(r"\[:10\].*(\n    del)", r"[:0].clone()\1", run.code))


@family.belief
def locals_go(run):
    """When a function returns, what it made and didn't return is freed at once

    CPython frees what nothing refers to. What refers to itself waits for the garbage collector.

        import weakref
        class Owner: pass
        alone, cyclic = Owner(), Owner()
        cyclic.me = cyclic
        refs = weakref.ref(alone), weakref.ref(cyclic)
        del alone, cyclic
        [ref() is not None for ref in refs]
    """
    return run.again(re.sub(r".*\[\"me\"\].*\n", "", run.code))
