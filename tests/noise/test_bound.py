"""Where pure-epsilon noise beats the Gaussian: the numbers of the theory."""

from __future__ import annotations

import pytest
import torch

from privet.noise import ComparedGaussianNoise, GroupedL2Noise
from privet.noise.additive import Crossover


@pytest.mark.parametrize(("epsilon", "dimension"), [(0.1, 8), (1.0, 13), (8.0, 22)])
def test_one_release(epsilon: float, dimension: int) -> None:
    found = Crossover(epsilon)
    assert found.dimension == dimension
    for count, wins in ((dimension, True), (dimension + 1, False)):
        w = torch.ones(count)
        costs = [family.solve(w, epsilon).cost(w) for family in (GroupedL2Noise, ComparedGaussianNoise)]
        assert (costs[0] <= costs[1]) is wins
        assert costs[0] / costs[1] == pytest.approx(found.ratio(count), rel=2e-3)


def test_a_whole_training() -> None:
    found = Crossover(2.0, rate=0.01, steps=10_000)
    assert found.pure_epsilon == pytest.approx(0.495, abs=2e-3)
    assert found.dimension == 0
    assert found.ratio(100_000) == pytest.approx(300, rel=5e-3)
