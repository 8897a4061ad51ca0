"""Where a syntax tree can be changed."""

import ast
import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """A node, and where it hangs: `getattr(parent, field)`, or the entry `index` of that list. `modules`:
    the names that are imported; `uses`: how often its function reads each name."""

    node: ast.AST
    parent: ast.AST
    field: str
    index: int | None
    modules: frozenset[str]
    uses: Counter[str]

    def set(self, value: ast.AST) -> None:
        if self.index is None:
            setattr(self.parent, self.field, value)
        else:
            getattr(self.parent, self.field)[self.index] = value


def places(tree: ast.Module) -> list[Place]:
    """All nodes that may be changed: not imports, annotations, docstrings, or the words of an error."""
    modules = frozenset(
        alias.asname or alias.name.partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    )
    found: list[Place] = []

    def visit(node: ast.AST, uses: Counter[str]) -> None:
        if isinstance(node, (ast.FunctionDef, ast.Lambda)):
            names = [n for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)]
            uses = Counter(name.id for name in names)
        for name, value in ast.iter_fields(node) if not isinstance(node, ast.Raise) else ():
            if name in ("annotation", "returns", "type_comment", "type_params"):
                continue
            for index, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
                if not isinstance(child, ast.AST) or isinstance(child, (ast.Import, ast.ImportFrom)):
                    continue
                if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
                    continue  # a docstring
                if hasattr(child, "lineno"):
                    found.append(Place(child, node, name, index, modules, uses))
                visit(child, uses)

    visit(tree, Counter())
    return sorted(found, key=lambda p: (p.node.lineno, p.node.col_offset))


@contextlib.contextmanager
def put(place: Place, replacement: ast.AST | None) -> Iterator[None]:
    """The tree with this one change."""
    removed = replacement is None and not isinstance(place.node, ast.stmt)
    if removed:
        del getattr(place.parent, place.field)[place.index]
    else:
        place.set(replacement or ast.Pass())
    yield
    if removed:
        getattr(place.parent, place.field).insert(place.index, place.node)
    else:
        place.set(place.node)
