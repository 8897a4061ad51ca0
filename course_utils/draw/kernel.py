"""What a Triton kernel does to its tensors: their elements as grids, and the sectors of memory below."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from course_utils.draw import palette
from course_utils.draw.kernel_seen import Array, Elements, Seen
from course_utils.draw.labels import LETTER, Label, counted, cut
from course_utils.draw.picture import Picture
from course_utils.draw.shapes import WIDTH, Scene, to_picture, trimmed
from course_utils.measure.kernel import LOADED, SECTOR, STORED, KernelTraffic
from course_utils.wrong_use import WrongUse, public

MOST_ROWS, MOST_COLUMNS, LONGEST = 64, 128, 32  # of a grid; of a row of a vector that is not long
HUES = ("view", "gradient", "rank", "saved", "flight")  # of programs, again and again
LEFT, GAP, LINE, SMALL, TEXT = 30, 14, 17, 9.5, 11  # for the numbers of rows; of text
LARGEST, LEAST, FRAME = 14, 4.6, 2.4  # of cells; of what is around those that are loaded
BEYOND = 3  # rows behind the end
HATCH = 0.9  # wide
TAPES, TAPE_ROWS, TAPE_LEFT, TAPE = 4, 16, 58, 13
NAMED = 4  # programs

Corners = Sequence[float]  # left, top, right, bottom


@public
def kernel(traffic: KernelTraffic, program: int | tuple[int, ...] | None = None) -> Picture:
    """Each tensor of a launch as a grid of its elements: those that are loaded have an outline, those that
    are stored a fill. Their colour is that of the program, one of five. Where a mask leaves out what nobody
    uses, also behind the end, it is hatched.

    With a `program` (its index in the grid, or its number): what this one does, with the sectors of memory
    that each of its lines touches. What it asks for outside its tensors is drawn behind their end, and what
    it races for is crossed. Of a large tensor a part is drawn. Raises `ValueError` where there is no such
    program.
    """
    number, grid = None, traffic.grid
    if program is not None:
        try:
            index = program if isinstance(program, tuple) else np.unravel_index(program, grid)
            number = int(np.ravel_multi_index(index, grid))
        except (ValueError, TypeError):
            wrong = f"draw.kernel: a grid of {grid} has no such program; given was {program}"
            raise WrongUse(wrong) from None
    return to_picture(trimmed(compose(Seen(traffic), number)))


def title(seen: Seen, program: int | None) -> str:
    """Which programs are shown."""
    name, grid, count = seen.traffic.name, seen.traffic.grid, seen.traffic.programs
    if program is not None:
        index = f", {seen.program(program)} in the grid {grid}" if len(grid) > 1 else ""
        others = f"of 0–{count - 1}" if count > 1 else "the only one"
        return f"{name}: program {program} ({others}){index}"
    colours = ", a colour for each" * (count > 1) + ", five in turn" * (count > len(HUES))
    return f"{name}: {counted(count, 'program')}{colours}"


def compose(seen: Seen, program: int | None = None, site: int | None = None, titled: bool = True) -> Scene:
    """The scene of `kernel`, of one site or of all."""
    scene = Scene(title(seen, program))
    x, y, bottom = 0.0, 8.0 + 24 * titled, 0.0
    if titled:
        scene.write(1, 10, scene.description, 13, bold=True)
    number = "; numbers: the programs" * (program is None and seen.traffic.programs > 1)
    scene.write(1, y - 2, f"outlined: loaded; filled: stored{number}", TEXT)
    y += LINE + 4
    for memory in range(len(seen.memories)):
        grid = _Grid(seen, memory, program, site)
        if x and x + grid.width > WIDTH:
            x, y = 0.0, bottom + GAP
        bottom = max(bottom, grid.draw(scene, x, y))
        x += grid.width + GAP
        scene.description += f"; {grid.name}: {', '.join(grid.told)}"
    y, drawn = bottom + GAP, (program, site) != (None, None)
    sites = [one for one in range(len(seen.sites)) if site in (None, one) and seen.calls(one, program)]
    most = TAPES if drawn else 2 * TAPES
    for one in sites[:most]:
        y = _tape(scene, seen, one, program, y, drawn)
    if (more := len(sites) - most) > 0:
        scene.write(1, y + LINE / 2, f"and {counted(more, 'more line')}", TEXT)
        y += LINE
    scene.height = y
    return scene


class _Grid:
    """One tensor."""

    def __init__(self, seen: Seen, memory: int, program: int | None, site: int | None) -> None:
        self.seen, self.program, self.held = seen, program, seen.memories[memory]
        shape, count, found = self.held.shape, len(self.held.offsets), seen.elements(memory, program, site)
        self.name, self.count, self.vector = ", ".join(self.held.names), count, len(shape) < 2
        long = LONGEST * (1 + (count > LONGEST**2))
        self.outside = [
            one for one in seen.outside(program, site) if one.tensor == ", ".join(self.held.names)
        ]
        masked = seen.masked(memory, program, site) if self.held.contiguous else np.zeros(0, dtype=np.int64)
        end = max([count, int(masked.max(initial=-1)) + 1, *(one.element + 1 for one in self.outside)])
        columns = max(1, min(end, long) if self.vector else shape[-1])
        rows = math.ceil(count / columns)
        # How an element looks, as a number: raced for, stored, loaded, and by whom or by how many.
        how = 4 * found.raced + 2 * (found.did > LOADED) + (found.did & ~STORED > 0)
        self.most = seen.traffic.programs + 1
        keys = np.full(rows * columns, -1)
        who = np.where(found.users > 1, self.most + found.users, found.user)
        keys[:count] = np.where(found.did > 0, how * 2 * self.most + who, -1)
        keys = keys.reshape(rows, columns)
        self.top = _begin(keys.max(1, initial=-1), MOST_ROWS)
        self.left = _begin(keys.max(0, initial=-1), MOST_COLUMNS)
        self.keys = keys[self.top :, self.left :][:MOST_ROWS, :MOST_COLUMNS]
        (high, wide), self.columns, self.whole = self.keys.shape, columns, self.keys.shape == keys.shape
        self.size = " × ".join(map(str, shape)) + f" in rows of {columns}" * (len(shape) != 2 and rows > 1)
        if not self.whole:
            self.size += f": rows {self.top} to {self.top + high - 1}"
            self.size += f", columns {self.left} to {self.left + wide - 1}" * (wide < columns)
        room = WIDTH / (1 if wide > MOST_ROWS else 2) - LEFT - GAP / 2
        self.cell = min(LARGEST, room / wide, max(LEAST, room / max(high, 1)))
        # Cells that only masked lanes point at, and as many rows behind the end as are drawn.
        self.hatched = np.full((rows + BEYOND, columns), -1)
        self.hatched.flat[masked[masked < self.hatched.size]] = 0
        self.hatched[:rows][keys >= 0] = -1
        self.hatched = self.hatched[self.top :, self.left :][: len(self.keys) + BEYOND * self.whole]
        self.hatched = self.hatched[:, : self.keys.shape[1]]
        self.told = self.tell(found)
        words = max(0.58 * TEXT * len(text) for text in (f"{self.name}   {self.size}", *self.told))
        self.width = LEFT + max(wide * self.cell, words)

    def tell(self, found: Elements) -> list[str]:
        """What is said below it."""
        loaded, stored = (int((found.did & ~bit > 0).sum()) for bit in (STORED, LOADED))
        again, several = int((found.loads > 1).sum()), found.users[(found.users > 1) & ~found.raced]
        lines = []
        if loaded:
            more = f", {'all' if again == loaded else f'{again:,} of them'} more than once" * (again > 0)
            lines.append(f"{loaded:,} of {self.count:,} loaded{more}")
        if stored:
            lines.append(f"{stored:,} of {self.count:,} stored")
        if offset := self.held.start % SECTOR:
            lines.append(f"begins {offset} bytes into a sector")
        if len(several):
            ends = dict.fromkeys((several.min(), several.max()))
            lines.append(f"grey: used by {' to '.join(map(str, ends))} programs")
        if raced := int(found.raced.sum()):
            lines.append(f"crossed: {counted(raced, 'element')} raced for")
        if raced and self.program is not None:
            rivals = [one[0] if len(one) == 1 else one for one in self.seen.rivals(self.name, self.program)]
            names = ", ".join(map(str, rivals[:NAMED]))
            more = f" and {len(rivals) - NAMED} more" * (len(rivals) > NAMED)
            lines += [f"with program{'s' * (len(rivals) > 1)} {names}{more}"] * bool(rivals)
        if (self.hatched >= 0).any():
            lines.append("hatched: masked")
        kinds = [one.site.kind for one in self.outside]
        for kind in dict.fromkeys(kinds):
            lines.append(f"{counted(kinds.count(kind), kind)} outside the tensor, not carried out")
        return lines or ["not touched"]

    def draw(self, scene: Scene, x: float, y: float) -> float:
        """Draws it from there on; returns where it ends."""
        x += LEFT
        scene.write(x, y, self.name, 12, code=True, bold=True)
        scene.write(x + LETTER * 12 * (len(self.name) + 1.5), y, self.size, TEXT)
        (high, wide), cell = self.keys.shape, self.cell
        y += 25 if high > 1 else 14
        for key, at, cells in _regions(self.keys, x, y, cell):
            self.region(scene, at, *divmod(key, 2 * self.most), cells)
        short = wide - self.count % self.columns if self.whole and self.count % self.columns else 0
        if high == 1:
            wide, short = wide - short, 0
        _lines(scene, (x, y), (cell, cell), (high, wide), short)
        step = _power(SMALL * (1 if cell > SMALL else 2) / cell)
        for row in range(0, high, step) if high > 1 else ():
            text = str((self.top + row) * (self.columns if self.vector else 1))
            scene.write(x - 4, y + (row + 0.5) * cell, text, SMALL, "end", faint=True)
        step = _power((len(str(self.left + wide)) * LETTER * SMALL + 6) / cell)
        for column in range(0, wide, step) if high > 1 else ():
            place = x + (column + 0.5) * cell
            scene.write(place, y - 7, str(self.left + column), SMALL, "middle", faint=True)
        behind, end = np.full((high + BEYOND, self.keys.shape[1]), -1), y + cell * high
        for _, at, cells in _regions(self.hatched, x, y, cell):
            _hatch(scene, at, cells, cell)
            end = max(end, at[3])
        if self.whole and self.held.contiguous:
            for one in self.outside:
                if 0 <= one.element < behind.size:
                    behind.flat[one.element] = one.site.kind != "load"
        for stored, at, _ in _regions(behind, x, y, cell):
            if stored:
                scene.area(_corners(*at), "odd")
            _frame(scene, at, palette.ODD, dashed=True)
            end = max(end, at[3])
        for number, line in enumerate(self.told):
            scene.write(x, end + 11 + LINE * number, line, TEXT)
        return end + 4 + LINE * len(self.told)

    def region(self, scene: Scene, at: Corners, how: int, who: int, cells: tuple[int, int]) -> None:
        """Elements that are alike."""
        several, loaded, stored, raced = who >= self.most, how & 1, how & 2, how & 4
        fill = "storage" if several else hue(self.seen.program(who))
        text = f"×{who - self.most}" if several else str(who)
        if raced or stored:
            scene.area(_corners(*at), "odd" if raced else fill)
        for row, column in np.ndindex(*cells) if raced else ():
            x, y = at[0] + column * self.cell, at[1] + row * self.cell
            for a, b in ((y, y + self.cell), (y + self.cell, y)):
                scene.line(((x, a), (x + self.cell, b)), 1.2, palette.INK)
        if loaded:
            _frame(scene, at, "" if stored or several else palette.FILLS[fill], 1.6 if stored else FRAME)
        wide, high, need = at[2] - at[0], at[3] - at[1], LETTER * SMALL * len(text)
        if self.program is None and not raced and wide > need + 6 * (stored > 0) and high > SMALL:
            between = cells[0] % 2 == 0 and self.cell > SMALL  # two lines: half a cell lower
            x, y = (at[0] + at[2]) / 2, (at[1] + at[3]) / 2 + between * self.cell / 2
            if stored:
                size = min(need + 9, wide), min(13, high - 3 * (loaded > 0))
                label = Label(x, y, text, SMALL, "middle")
                scene.box(x - size[0] / 2, y - size[1] / 2, *size, fill, (label,), line=0)
            else:
                scene.write(x, y, text, SMALL, "middle")


def hue(program: Sequence[int]) -> str:
    """The colour of a program: another than those of its neighbours in the grid."""
    return HUES[sum(i * n for i, n in zip(program, (1, 2, 1), strict=False)) % len(HUES)]


def _tape(scene: Scene, seen: Seen, number: int, program: int | None, y: float, drawn: bool) -> float:
    """The memory of a tensor as a tape of sectors: those that a site touches are shaded."""
    site, (addresses, sectors, fewest) = seen.sites[number], seen.touched(number, program)
    said = f"{site.kind} of {site.tensor}, line {site.line}"
    at_best = f"{counted(sectors, 'sector')}, {fewest:,} at best"
    begin, room = ((0.66 * TEXT * len(text) + 8) for text in (said, at_best))
    code = cut(site.code, int((WIDTH - 10 - room - begin) / (LETTER * 10)))
    scene.write(1, y + 6, said, TEXT, bold=True)
    scene.write(begin, y + 6, code, 10, code=True)
    scene.write(WIDTH - 10, y + 6, at_best, TEXT, "end", bold=True)
    y += 18
    if not drawn or not sectors:
        return y
    memories = [seen.memories[memory] for memory in site.memories]
    first = min(memory.start for memory in memories) // SECTOR
    count = -(-max(memory.end for memory in memories) // SECTOR) - first
    wide = next((w for w in (80, 40, 20) if count * w <= 3 * (WIDTH - TAPE_LEFT)), 10)
    size, columns = memories[0].itemsize, (WIDTH - TAPE_LEFT) // wide
    rows, touched = -(-count // columns), np.unique(addresses // SECTOR) - first
    top = 0 if rows <= TAPE_ROWS else int(touched[0]) // columns
    lanes = np.full((rows, columns * SECTOR // size), -1)
    lanes.reshape(-1, SECTOR // size)[touched] = 0
    lanes.flat[(addresses - first * SECTOR) // size] = 1
    mine = "view" if program is None else hue(seen.program(program))
    for row in range(top, min(top + TAPE_ROWS, rows)):
        for least, inset, fill in ((0, 0, "storage"), (1, 3, mine)):
            keys = np.where(lanes[row] >= least, 0, -1)[None]
            for _, (left, _, right, _), _ in _regions(keys, TAPE_LEFT, y, wide * size / SECTOR):
                scene.area(_corners(left, y + inset, right, y + TAPE - inset), fill)
        _lines(scene, (TAPE_LEFT, y), (wide, TAPE), (1, min(columns, count - row * columns)))
        byte = f"{'byte ' * (row == top)}{row * columns * SECTOR:,}"
        scene.write(TAPE_LEFT - 5, y + TAPE / 2, byte, SMALL, "end", faint=True)
        y += TAPE + 3
    if rows > TAPE_ROWS:
        part = f"drawn are {columns * TAPE_ROWS:,} of {count:,} sectors, from the first that is touched"
        scene.write(TAPE_LEFT, y + 6, part, TEXT)
        y += LINE
    return y + 8


def _regions(keys: Array, x: float, y: float, cell: float) -> Iterator[tuple[int, Corners, tuple[int, int]]]:
    """Rectangles of equal keys that are not negative: the key, where it lies, and its rows and columns."""
    opened: dict[tuple[int, int, int], int] = {}
    for row in range(len(keys) + 1):
        now = {}
        if row < len(keys):
            edges = [0, *(np.flatnonzero(np.diff(keys[row])) + 1).tolist(), keys.shape[1]]
            for left, right in zip(edges, edges[1:], strict=False):
                spot = int(keys[row, left]), left, right
                now[spot] = opened.get(spot, row)
        for (key, left, right), top in opened.items():
            if key >= 0 and (key, left, right) not in now:
                at = x + left * cell, y + top * cell, x + right * cell, y + row * cell
                yield key, at, (row - top, right - left)
        opened = now


def _corners(left: float, top: float, right: float, bottom: float) -> tuple[tuple[float, float], ...]:
    return (left, top), (right, top), (right, bottom), (left, bottom)


def _frame(scene: Scene, at: Corners, colour: str, wide: float = FRAME, dashed: bool = False) -> None:
    wide = min(wide, 0.28 * min(at[2] - at[0], at[3] - at[1]))
    corners = _corners(*(end + wide / 2 * side for end, side in zip(at, (1, 1, -1, -1), strict=True)))
    scene.line((*corners, corners[0]), wide, colour, dashed=dashed and wide > 2)  # else it is all gaps


def _hatch(scene: Scene, at: Corners, cells: tuple[int, int], cell: float) -> None:
    """One line for each cell, from its lower left corner to its upper right one."""
    for row, column in np.ndindex(*cells):
        x, y = at[0] + column * cell, at[1] + row * cell
        scene.line(((x, y + cell), (x + cell, y)), HATCH, palette.LINE)
    _frame(scene, at, palette.LINE, HATCH)


def _lines(scene: Scene, at: Corners, cell: Corners, count: tuple[int, int], short: int = 0) -> None:
    """The edges of cells in rows and columns; the last row is so many cells shorter."""
    (x, y), (wide, tall), (rows, columns) = at, cell, count
    for column in range(columns + 1):
        bottom = y + tall * (rows - (column > columns - short))
        scene.line(((x + column * wide, y), (x + column * wide, bottom)), 0.5)
    for row in range(rows + 1):
        right = x + wide * (columns - short * (row == rows))
        scene.line(((x, y + row * tall), (right, y + row * tall)), 0.5)


def _begin(touched: Array, most: int) -> int:
    """Where a part of so many rows begins that shows what is touched."""
    places = np.flatnonzero(touched >= 0)
    return 0 if not len(places) or places[-1] < most else min(int(places[0]), len(touched) - most)


def _power(least: float) -> int:
    return 2 ** max(0, math.ceil(math.log2(least)))
