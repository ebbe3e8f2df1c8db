"""The optimum found by a linear programme over densities on a grid, in one and in two dimensions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from scipy.sparse import coo_matrix

from privet.noise import GroupedL2Noise, IsotropicL2Noise, ProductLaplaceNoise, StaircaseNoise, lower_bound


def least(cost: np.ndarray, pairs: list[tuple[int, int, float]], mass: np.ndarray) -> float:
    """The least sum cost p over densities p with p[i] <= factor p[j] for every (i, j, factor)."""
    rows = np.repeat(np.arange(len(pairs)), 2)
    columns = [index for i, j, _ in pairs for index in (i, j)]
    values = [value for _, _, factor in pairs for value in (1.0, -factor)]
    matrix = coo_matrix((values, (rows, columns)), shape=(len(pairs), len(cost)))
    found = linprog(cost, A_ub=matrix.tocsr(), b_ub=np.zeros(len(pairs)), A_eq=mass[None], b_eq=[1.0], method="highs")
    assert found.status == 0
    return float(found.fun)


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0])
def test_one_number(epsilon: float) -> None:
    """Cells of alpha / 20 up to 12 alpha / epsilon on either side, every shift of up to alpha: the staircase, to 3 %."""
    cells = 20
    reach = math.ceil(12 / min(epsilon, 2.0)) * cells
    places = (np.arange(2 * reach) + 0.5 - reach) / cells
    shifts = [shift for step in range(1, cells + 1) for shift in (step, -step)]
    pairs = [
        (i, i + shift, math.exp(epsilon)) for i in range(2 * reach) for shift in shifts if 0 <= i + shift < 2 * reach
    ]
    optimum = least(np.abs(places), pairs, np.ones(2 * reach))
    one = torch.ones(1)
    assert StaircaseNoise.solve(one, epsilon).cost(one) == pytest.approx(optimum, rel=0.03)
    assert lower_bound(one, epsilon) < optimum


@pytest.mark.parametrize(("second", "optimum"), [(1.0, 2.531), (0.3, 1.594), (0.1, 1.239)])
def test_two_numbers_at_small_epsilon(second: float, optimum: float) -> None:
    """A quadrant of cells of 0.3 alpha / epsilon: log-Lipschitz along 16 directions, which is a little too loose.

    The programme lies near the value of a finer one, and no family passes it by more than the error of the grid.
    """
    cells, width = 30, 0.3
    place = (np.arange(cells) + 0.5) * width
    steps = [(1, 0), (0, 1), (1, 1), (1, -1), (2, 1), (1, 2), (2, -1), (1, -2)]
    pairs = []
    for i in range(cells):
        for j in range(cells):
            for a, b in steps:
                k, m = i + a, j + b
                if 0 <= k < cells and 0 <= m < cells:
                    factor = math.exp(width * math.hypot(a, b))
                    pairs += [(i * cells + j, k * cells + m, factor), (k * cells + m, i * cells + j, factor)]
    cost = (place[:, None] + second * place[None]).ravel()
    found = least(cost, pairs, np.ones(cells * cells))
    assert found == pytest.approx(optimum, rel=0.05)
    w = torch.tensor([1.0, second])
    epsilon = 1e-6
    costs = [
        family.solve(w, epsilon, epsilon).cost(w) for family in (GroupedL2Noise, ProductLaplaceNoise, IsotropicL2Noise)
    ]
    assert optimum * 0.99 <= costs[0] <= 1.10 * optimum
    assert lower_bound(w, epsilon, epsilon) <= optimum
    assert costs[0] == pytest.approx(min(costs), rel=1e-6)
    # What the theory states of the others, in the same units.
    if second == 1.0:
        assert costs[2] == pytest.approx(2.546, abs=1e-3)
    if second == 0.3:
        assert costs[1:] == pytest.approx([1.743, 1.655], abs=1e-3)
    if second == 0.1:
        assert costs[1] == pytest.approx(1.340, abs=1e-3)
