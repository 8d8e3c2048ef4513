"""Writes einsum.json: NumPy's results for equations that show its rules.

    pip install numpy==1.26.4
    python generate_einsum.py
"""

import numpy as np

from reference import Cases, integers

# Each with the sizes of its operands. The elements are small integers, so sums are exact.
EQUATIONS = [
    ("i,i", (3,), (3,)), ("i,i->i", (3,), (3,)), ("i,j", (2,), (3,)), ("i,j->ji", (2,), (3,)), ("i->", (4,)), ("->", ()),
    (",", (), ()), ("ij", (2, 3)), ("ba", (2, 3)), ("ij->ji", (2, 3)), ("Ab", (2, 3)), ("bA", (2, 3)), ("ii", (3, 3)),
    ("ii->i", (3, 3)), ("iij->j", (3, 3, 2)), ("iji->ij", (2, 3, 2)), ("iii->i", (2, 2, 2)), ("iijj->ij", (2, 2, 3, 3)),
    ("ij,jk", (2, 3), (3, 4)), ("ij,jk->ki", (2, 3), (3, 4)), ("ij,kj", (2, 3), (4, 3)), ("bij,bjk->bik", (2, 2, 3), (2, 3, 2)),
    ("bij,bjk", (2, 2, 3), (2, 3, 2)), ("ij,ij->j", (2, 3), (2, 3)), ("ijk,jil->kl", (2, 3, 4), (3, 2, 2)),
    ("ij,jk,kl->il", (2, 3), (3, 4), (4, 2)), ("ij,jk,ki", (2, 3), (3, 4), (4, 2)), ("a,b,c->abc", (2,), (3,), (2,)),
    ("ab,cb,db->acd", (2, 3), (2, 3), (2, 3)), ("i,i,i,i", (3,), (3,), (3,), (3,)), ("...", (2, 3)), ("...i", (2, 3)),
    ("i...->...", (2, 3)), ("...ij->...ji", (2, 3, 4)), ("...ij,...jk->...ik", (2, 3, 4), (4, 2)),
    ("...ij,...jk", (2, 1, 2, 3), (3, 3, 2)), ("...,...", (2, 1), (3,)), ("i...,i...->i...", (2, 3), (2, 1)),
    ("...i,i...", (4, 3), (3, 4)), ("i...j,k->...ki", (2, 3, 4, 2), (3,)), ("ij,ij", (1, 3), (2, 3)), ("ij,jk", (2, 1), (3, 4)),
    ("i j , j k -> i k", (2, 3), (3, 2)), ("ij->", (0, 3)), ("ij,jk->ik", (2, 0), (0, 3)),
    ("abc,ade,bdf,cef->", (2, 3, 2), (2, 2, 3), (3, 2, 2), (2, 3, 2)), ("...ii->...i", (2, 3, 3)), ("ab...,b->a...", (2, 3, 2), (3,)),
]
# Equations that NumPy refuses.
REFUSED = [
    ("ij,jk", (2, 3), (4, 5)), ("ij", (2, 3, 4)), ("ijk", (2, 3)), ("ij->k", (2, 3)), ("ij->ii", (2, 3)), ("i,j", (2,)),
    ("i1", (2, 3)), ("i->i->i", (2,)), ("i..", (2, 3)), ("......", (2, 3)), ("ii", (2, 3)), ("ii", (1, 3)), ("...->", (2,)), ("i-", (2,)), ("->i", ()),
    ("...,...", (2,), (3,)),
]


def main():
    cases = Cases(numpy=np.__version__)
    for seed, (equation, *shapes) in enumerate(EQUATIONS):
        arrays = [integers(100 * seed + i, -3, 4, *shape).astype(float) for i, shape in enumerate(shapes)]
        cases.add("einsum", arrays, np.einsum(equation, *arrays), equation=equation)
    for equation, *shapes in REFUSED:
        arrays = [np.ones(shape) for shape in shapes]
        try:
            np.einsum(equation, *arrays)
        except ValueError:
            cases.add("refused", arrays, [], equation=equation)
        else:
            raise AssertionError(f"NumPy takes {equation}")
    cases.save("einsum.json")


if __name__ == "__main__":
    main()
