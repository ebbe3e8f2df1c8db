"""Optimised additive noise (Xiang et al. 2019): the noise that hurts the cost least among all that keep the privacy constraint.

Three sound forms, and the published algorithm:

- "grouped": pure-epsilon noise of least cost, shaped by the gradients that were released, by public weights, or by weights that
  were released and accounted before. Every pure-epsilon step is dominated by randomised response, which PLD composes exactly.
- "isotropic": pure-epsilon noise without a shape, whose own privacy loss PLD composes: near Gaussian noise in many dimensions.
- "elliptical": Gaussian noise, clipping to an ellipsoid that follows the released gradients, and the step in the norm of that
  ellipsoid: DP-SGD's accountant.
- as published: the shape is the derivative of the cost over the private records, and advanced composition with amplification by
  sampling gives each step's budget. What it claims is not proved, and every statement of it says so.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import InitVar, dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from privet.clipping import MovingEllipticalClipping
from privet.data import Split
from privet.errors import InputError
from privet.methods import dpsgd
from privet.methods.dpsgd import Loss, RecipeMethod, Trained
from privet.methods.method import Task, option, register
from privet.noise import IsotropicL2Noise, MovingShapeNoise, PublishedShapeNoise, ShapedNoise

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
    """Train a classifier with optimised noise.

    Formal guarantees: `form` without `as_published` is proved. A step samples records afresh, clips each record's gradient, and
    adds fresh noise; the noise's shape depends on earlier releases or on `weights` alone.

    Args:
        model, optimizer, records, loss, settings: as in `privet.methods.dpsgd.train`. A `noise_multiplier` is 1 / epsilon of a
            step for the pure-epsilon forms.
        form: "grouped", "isotropic" or "elliptical".
        as_published: the published algorithm, whose epsilon is only claimed.
        weights: for "grouped", w for each parameter by its name: from public data, or from a release that is in the ledger
            already. Without it, w follows the released gradients.
        decay: for "grouped" without `weights`, of the moving average of released gradients; 0.9 without it.
    """
    if form not in FORMS:
        raise InputError(f"The form of optimised noise is {', '.join(FORMS)}, not {form!r}.")
    if (as_published or weights is not None) and form != "grouped":
        raise InputError(f"The noise of the form {form!r} has no weights: choose the form 'grouped'.")
    if as_published and weights is not None:
        raise InputError("As published, the weights are computed from the records: leave them out.")
    if decay is not None and (form != "grouped" or as_published or weights is not None):
        raise InputError(
            "decay is of the form 'grouped' without weights, whose noise follows released gradients: leave it out."
        )
    if "noise" in settings or "clipping" in settings:
        raise InputError("The form of optimised noise chooses noise and clipping: leave noise= and clipping= out.")
    if as_published and settings.get("accountant", "strong") != "strong":
        raise InputError("As published, epsilon is that of advanced composition: leave the accountant out.")
    if as_published:
        records.require_records("Optimised noise as published")
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
    """The derivative of the mean cost over all training records with respect to each parameter, at the model as it is.

    It looks at every record without protection: noise that is shaped by it has no proof.
    """

    model: InitVar[nn.Module]
    records: InitVar[Split]
    loss: InitVar[Loss]
    chunk: int = 4096

    def __post_init__(self, model: nn.Module, records: Split, loss: Loss) -> None:
        # A copy: what listens to the model in training must not hear of this pass.
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
    proof = "weighting from public data or releases: proved; as published, from private records: claimed, refuted"

    key: str = "optimized-noise"
    title: str = "Optimized additive noise (Xiang et al. 2019), grouped"
    form: str = option("grouped", "the form of the noise: grouped, isotropic or elliptical")
    as_published: bool = False

    def why_not(self, task: Task) -> str:
        if self.as_published and task.dataset.train.users is not None:
            return "it has no proof for users who hold several records"
        return super().why_not(task)

    def example(self, noise: float, rate: float, steps: int, delta: float) -> Ran:
        elliptical = self.form == "elliptical"
        clipping = MovingEllipticalClipping(1.0) if elliptical else FlatClipping(1.0)
        chosen = GaussianNoise(noise) if elliptical else MovingShapeNoise(noise)
        if self.form == "isotropic":
            chosen = IsotropicL2Noise(2 * WIDTH, noise)
        return Ran(Ledger(), delta, Plan(PoissonSampling(rate), clipping, chosen, steps, EXAMPLE_RECORDS))

    def trained(self, task: Task, part: nn.Module, settings: dict[str, Any]) -> Trained:
        return train(part, form=self.form, as_published=self.as_published, **settings)


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
