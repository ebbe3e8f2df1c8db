"""Optimized additive noise (Xiang et al. 2019): the noise with the least cost under the privacy constraint.

Three sound forms, and the published algorithm:

- "grouped": pure-epsilon noise of least cost, shaped by the gradients that were released, by public weights, or by weights that
  were released and accounted before. Every pure-epsilon step is dominated by randomized response, which PLD composes exactly.
- "isotropic": pure-epsilon noise without a shape, whose own privacy loss PLD composes: near Gaussian noise in many dimensions.
- "elliptical": Gaussian noise, clipping to an ellipsoid that follows the released gradients, and the step in the norm of that
  ellipsoid: DP-SGD's accountant.
- as published: the shape is the derivative of the cost over the private records, and advanced composition with amplification by
  sampling gives each step's budget. Its claim is not proved, and every statement says so.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import InitVar, dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from privet.audit import Audit, mechanism
from privet.audit.white_box import noises
from privet.clipping import BoundedSum, Clipping, FlatClipping, MovingEllipticalClipping
from privet.data import Progress, Split
from privet.errors import InputError
from privet.gradients import Engine
from privet.methods import dpsgd
from privet.methods.dpsgd import EXAMPLE_RECORDS, Loss, RecipeMethod, Trained
from privet.methods.method import VARIANT, Power, Ran, Task, register
from privet.noise import GaussianNoise, IsotropicL2Noise, MovingShapeNoise, Noise, PublishedShapeNoise, ShapedNoise
from privet.noise.pure import CLAIM
from privet.privacy import Ledger, PureEpsilon
from privet.privacy.events import PoissonSampled, Under
from privet.sampling import PoissonSampling
from privet.training import Plan

FORMS = ("grouped", "isotropic", "elliptical")


def train(
    model: nn.Module,
    optimizer: Optimizer,
    records: Split,
    *,
    form: str = "grouped",
    as_published: bool = False,
    weights: Mapping[str, Tensor] | None = None,
    decay: float | None = None,
    loss: Loss = nn.functional.cross_entropy,
    **settings: Any,
) -> Trained:
    """Train a classifier with optimized noise.

    Formal guarantees: `form` without `as_published` is proved. A step samples records afresh, clips each record's gradient, and
    adds fresh noise; the noise's shape depends on earlier releases or on `weights` alone.

    Args:
        model, optimizer, records, loss, settings: as in `privet.methods.dpsgd.train`. A `noise_multiplier` is 1 / epsilon of a
            step for the pure-epsilon forms.
        form: "grouped", "isotropic" or "elliptical".
        as_published: the published algorithm, whose epsilon is only claimed.
        weights: for "grouped", w for each parameter by its name: from public data, or from a release that is in the ledger
            already. Without it, w follows the released gradients.
        decay: for "grouped" without `weights`, the decay of the moving average of released gradients; 0.9 by default.
    """
    if form not in FORMS:
        raise InputError(f"The form of optimized noise is {', '.join(FORMS)}, not {form!r}.")
    if (as_published or weights is not None) and form != "grouped":
        raise InputError(f"The noise of the form {form!r} has no weights: choose the form 'grouped'.")
    if as_published and weights is not None:
        raise InputError("As published, the weights are computed from the records: leave them out.")
    if decay is not None and (form != "grouped" or as_published or weights is not None):
        raise InputError(
            "decay is of the form 'grouped' without weights, whose noise follows released gradients: leave it out."
        )
    if "noise" in settings or "clipping" in settings:
        raise InputError("The form of optimized noise chooses noise and clipping: leave noise= and clipping= out.")
    if as_published and settings.get("accountant", "strong") != "strong":
        raise InputError("As published, epsilon is that of advanced composition: leave the accountant out.")
    if as_published:
        records.require_records("Optimized noise as published")
        sensitivity = CostSensitivity(model, records, loss)
        settings |= {"noise": partial(PublishedShapeNoise, sensitivity=sensitivity), "accountant": "strong"}
    elif form == "elliptical":
        settings["clipping"] = MovingEllipticalClipping(settings.pop("max_grad_norm"))
    elif form == "isotropic":
        count = sum(p.numel() for p in model.parameters() if p.requires_grad)
        settings["noise"] = partial(IsotropicL2Noise, count)
    elif weights is not None:
        settings["noise"] = partial(ShapedNoise, weights=weights)
    else:
        settings["noise"] = partial(MovingShapeNoise, decay=0.9 if decay is None else decay)
    return dpsgd.train(model, optimizer, records, loss=loss, **settings)


@dataclass(frozen=True, eq=False)
class CostSensitivity:
    """The derivative of the mean cost over all training records with respect to each parameter, at the current parameters.

    It uses every record without protection: noise with this shape has no proof.
    """

    model: InitVar[nn.Module]
    records: InitVar[Split]
    loss: InitVar[Loss]
    chunk: int = 4096

    def __post_init__(self, model: nn.Module, records: Split, loss: Loss) -> None:
        # A copy, because the engine that listens to the trained model must not see this pass.
        parts = {"_model": model, "_twin": copy.deepcopy(model).eval(), "_records": records, "_loss": loss}
        for name, part in parts.items():
            object.__setattr__(self, name, part)

    def __call__(self) -> dict[str, Tensor]:
        model, twin, records, loss = (getattr(self, name) for name in ("_model", "_twin", "_records", "_loss"))
        twin.load_state_dict(model.state_dict())
        parameters = {name: p for name, p in twin.named_parameters() if p.requires_grad}
        total = {name: torch.zeros_like(p) for name, p in parameters.items()}
        for indices in torch.arange(len(records)).split(self.chunk):
            inputs, labels = records.batch(indices)
            with torch.enable_grad():
                found = torch.autograd.grad(loss(twin(inputs), labels), list(parameters.values()))
            for name, gradient in zip(parameters, found, strict=True):
                total[name] += gradient * (len(indices) / len(records))
        return total


@register
@dataclass(frozen=True, kw_only=True)
class OptimizedNoise(RecipeMethod):
    """DP-SGD with the noise of least cost in place of Gaussian noise, by a recipe.

    Attributes:
        form: grouped, isotropic or elliptical.
        as_published: the published algorithm, whose epsilon is only claimed.
    """

    source = "Xiang et al. 2019"
    noise_is = "the gradient, shaped by a weighting"
    proof = "weighting from public data or releases: proved; as published: claimed, refuted"

    key: str = "optimized-noise"
    title: str = "Optimized additive noise (Xiang et al. 2019), grouped"
    form: str = field(default="grouped", metadata=VARIANT)
    as_published: bool = field(default=False, metadata=VARIANT)

    def why_not(self, task: Task) -> str:
        if self.as_published and task.dataset.train.users is not None:
            return "it has no proof for users who hold several records"
        return super().why_not(task)

    def audits(self, ran: Ran, power: Power, progress: Progress | None = None) -> tuple[Audit, ...]:
        """The published form refutes itself: the shape of its noise reveals the records."""
        if not self.as_published:
            return super().audits(ran, power, progress)
        found = published_noise_in(ran.ledger, **power.asked(ran.delta, progress))
        return tuple(replace(one, audited="the noise of a step, shaped by the records") for one in found)

    def example(self, noise: float, rate: float, steps: int, delta: float) -> Ran:
        if self.as_published:
            ledger = Ledger()
            ledger.record(PoissonSampling(rate).event(PureEpsilon(1 / noise).under(CLAIM)), steps)
            return Ran(ledger, delta)
        if self.form == "elliptical":
            return Ran(
                Ledger(), delta, _plan(MovingEllipticalClipping(1.0), GaussianNoise(noise), rate, steps), of="method"
            )
        # The weights that hide a canary least.
        name = {"grouped": "grouped L2", "isotropic": "isotropic L2"}[self.form]
        return Ran(Ledger(), delta, _plan(FlatClipping(1.0), noises(1 / noise)[name], rate, steps), of="method")

    def trained(self, task: Task, part: nn.Module, settings: dict[str, Any]) -> Trained:
        return train(part, form=self.form, as_published=self.as_published, **settings)


def _plan(clipping: Clipping, noise: Noise, rate: float, steps: int) -> Plan:
    return Plan(PoissonSampling(rate), clipping, noise, steps, EXAMPLE_RECORDS)


for _form, _said in (("isotropic", "isotropic"), ("elliptical", "elliptical clipping with Gaussian noise")):
    register(
        replace(
            OptimizedNoise(),
            key=f"optimized-noise-{_form}",
            title=f"Optimized additive noise (Xiang et al. 2019), {_said}",
            form=_form,
        )
    )
register(
    replace(
        OptimizedNoise(),
        key="optimized-noise-published",
        title="Optimized additive noise (Xiang et al. 2019), as published, by advanced composition: only claimed",
        as_published=True,
        accountant="strong",
    )
)


# --- the audit of the published form ------------------------------------------------------------------------------------

WIDTH, FIRST = 20, 11
FEWER = 10
"""Factor by which the number of draws is reduced if noise is drawn for each release separately."""
RECORD = (torch.arange(WIDTH) < FIRST)[None] / math.sqrt(FIRST)
CANARY = (torch.arange(WIDTH) >= FIRST)[None] / math.sqrt(WIDTH - FIRST)
"""The record lies in the first coordinates, the canary in the others. Without it these cost nothing and get the most noise."""


def published_noise(
    epsilon: float = 1.0,
    *,
    delta: float = 1e-5,
    draws: int = 2000,
    confidence: float = 0.99,
    seed: int = 0,
    progress: Progress | None = None,
) -> Audit:
    """Audit one step whose noise is shaped by the derivative of the cost over the private records, at a claimed epsilon.

    Formal guarantees: those of Clopper-Pearson, which assumes nothing. The claim is the event of `PublishedShapeNoise`.
    """
    model = nn.Linear(WIDTH, 1, bias=False)  # the gradient of its output is the record itself
    sides = {len(rows): _side(model, rows, epsilon) for rows in (torch.cat([RECORD, CANARY]), RECORD)}

    def one_step(count: int, generator: torch.Generator) -> Tensor:
        noise, bounded = sides[count]
        return noise.add(bounded, generator)["weight"]

    return mechanism(
        one_step,
        2,
        1,
        claimed=sides[1][0].event(),
        delta=delta,
        score=lambda released: -float(released[0, FIRST:].norm()),
        draws=draws,
        confidence=confidence,
        name="One step, optimized noise as published",
        setting="20 coordinates; a record of the first 11, and a canary of the others",
        seed=seed,
        progress=progress,
    )


def published_noise_in(ledger: Ledger, *, draws: int, **settings: Any) -> tuple[Audit, ...]:
    """The audit of a ledger that holds optimized noise as published; nothing for any other ledger."""
    if ledger.guarantee != CLAIM:
        return ()
    for event, _ in ledger.event.leaves():
        inner = event.event if isinstance(event, PoissonSampled) else event
        inner = inner.event if isinstance(inner, Under) else inner
        if isinstance(inner, PureEpsilon):
            return (published_noise(inner.epsilon, draws=max(40, draws // FEWER), **settings),)
    return ()


def _side(model: nn.Linear, rows: Tensor, epsilon: float) -> tuple[PublishedShapeNoise, BoundedSum]:
    """The noise and the clipped sum of one of the two data sets."""
    records = Split(rows, torch.zeros(len(rows), dtype=torch.int64))
    sensitivity = CostSensitivity(model, records, lambda outputs, _: outputs.mean())
    with Engine(model, loss_reduction="sum") as engine:
        model(rows).sum().backward()
        return PublishedShapeNoise(1 / epsilon, sensitivity), FlatClipping(1.0).clip(engine.gradients())
