"""A white-box audit of a whole DP-SGD training in one run: by the loop that trains models, on gradients that tell the most."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from privet.audit.bounds import OneRun
from privet.audit.canaries import gradient_directions
from privet.audit.claim import Claim
from privet.audit.guessing import audit_guesses
from privet.audit.result import Audit
from privet.clipping import FlatClipping
from privet.data import Progress
from privet.gradients import Engine
from privet.noise import GaussianNoise
from privet.privacy import Ledger
from privet.randomness import Randomness
from privet.sampling import PoissonSampling
from privet.training import Plan, Private
from privet.training.drawing import Records
from privet.training.plan import BudgetLimit


def training(
    *,
    rate: float,
    noise_multiplier: float,
    steps: int,
    delta: float = 1e-5,
    canaries: int = 1000,
    guesses: int | None = None,
    confidence: float = 0.99,
    name: str = "DP-SGD, a whole training",
    seed: int = 0,
    progress: Progress | None = None,
) -> Audit:
    """Audit sampling, clipping, noise and accounting of a whole training.

    The model is linear in its records, so that each canary has a gradient of its own in every step; the attacker sees each
    step's gradient and scores a canary by its exact log-likelihood ratio. The claim is what the run's ledger says.
    """
    generator = torch.Generator().manual_seed(seed)
    coins = torch.rand(canaries, generator=generator) < 0.5
    records = gradient_directions(canaries)[coins]
    model = nn.Linear(canaries, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    plan = Plan(PoissonSampling(rate), FlatClipping(1.0), GaussianNoise(noise_multiplier), steps, canaries)
    scores = torch.zeros(canaries, dtype=torch.float64)
    done = 0

    def see(*_: object) -> None:
        nonlocal done
        if private.rehearsing:
            return
        done += 1
        if progress is not None:
            progress(f"Auditing: {name}", done, steps)
        gradient: Tensor | None = model.weight.grad
        assert gradient is not None
        ratio = (2 * gradient[0].double() * plan.expected_batch_size - 1) / (2 * noise_multiplier**2)
        # ln(1 - rate + rate e^ratio), safe where the ratio is large.
        scores.add_(torch.logaddexp(torch.tensor(1 - rate).log(), ratio + torch.tensor(rate).log()))

    optimizer.register_step_post_hook(see)
    ledger = Ledger()
    engine = Engine(model, loss_reduction="sum")
    data = Records(TensorDataset(records), size_is_public=False)
    private = Private(BudgetLimit(plan, ledger, delta), engine, [optimizer], data, Randomness.of(seed))
    for (x,) in private.batches():
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
    private.close()
    return audit_guesses(
        scores.numpy(),
        coins.numpy(),
        claim=Claim.of(ledger, delta),
        bound=OneRun(delta, confidence),
        name=name,
        setting=f"{steps} steps, all seen; {canaries:,} canaries with orthogonal gradients above the clipping norm",
        guesses=guesses,
        seed=seed,
    )
