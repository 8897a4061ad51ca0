"""Program 2 has the block 8, 9, 10, 11, and the mask lets 8 and 9 through. So all programs together load ten
elements, which are 40 bytes. Without the mask it asks for 10 and 11 too. In `total` these two places hold 5,
and the sum is 1 + 1 + 5 + 5.

1,000 elements need four blocks of 256; the last one isn't full.

Program (1, 0) of the tiles has the rows 2 and 3 and the columns 0 to 3. Row 3 is masked; row 2 begins at 10.
Program (0, 1) has the columns 4 to 7 of the rows 0 and 1. Only column 4 exists, but the offsets 5, 6 and 7
are those of the next row, and all are less than 15. So the flat mask loads them.
"""


def predict_programs() -> dict:
    """Elements that a program loads, and a few numbers"""
    return {
        "double[(3,)]: program 1 loads": (4, 5, 6, 7),  # this one is answered
        # the mask
        "double[(3,)]: program 2 loads": (8, 9),
        "double[(3,)]: bytes of x that all programs load": 40,
        "unmasked[(3,)]: program 2 asks for, outside x": (10, 11),
        "total[(3,)]: program 2 stores the number": 12,
        # the grid
        "double[(4,)]: program 3 loads": (),
        "double: programs for 1,000 elements in blocks of 256": 4,
        # two dimensions
        "tiles[(2, 2)]: program (1, 0) loads": (10, 11, 12, 13),
        "flat_mask[(2, 2)]: program (0, 1) loads": (4, 5, 6, 7, 9, 10, 11, 12),
    }


# Other right answers

from course_utils.exercise import Edit, Wrong


def _as_lists():
    return {line: list(said) if type(said) is tuple else said for line, said in predict_programs().items()}


def _by_hand():
    where = [[i * 5 + j for j in range(4)] for i in (2, 3)]
    return predict_programs() | {
        "tiles[(2, 2)]: program (1, 0) loads": tuple(where[0]),
        "double[(3,)]: bytes of x that all programs load": 10 * 4,
    }


also_right = [_as_lists, _by_hand]


# Mistakes


def _asks_torch():
    import torch

    return {**predict_programs(), "total[(3,)]: program 2 stores the number": int(torch.tensor(12))}


mistakes = [
    Wrong(_asks_torch, told_by="written_down"),
    Edit("the whole block", "(8, 9)", "(8, 9, 10, 11)", told_by="masks"),
    Edit("masked lanes move bytes", 'load": 40', 'load": 48', told_by="masks"),
    Edit("masked lanes are left out of a sum", 'number": 12', 'number": 2', told_by="masks"),
    Edit("rounded down", '256": 4', '256": 3', told_by="grids"),
    Edit("the grid, transposed", "(10, 11, 12, 13)", "(4, 9)", told_by="two_dimensions"),
    Edit("a mask knows the row", "(4, 5, 6, 7, 9, 10, 11, 12)", "(4, 9)", told_by="two_dimensions"),
]
