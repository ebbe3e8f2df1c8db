"""Loops that go past the private gradient, and ordinary loops that must work."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import privet
from privet.training import Performance
from tests.zoo.harness import (
    SAFE,
    SOUND,
    Batch,
    Outcome,
    Run,
    Trap,
    Watching,
    classic,
    clipped_sum,
    fresh,
    record_gradients,
    step_on,
    tensors_of,
)
from tests.zoo.parts import CLASSES, FEATURES, OUTLIER, aligned, cross_entropy, perceptron, rows

NOT_RIGHT = frozenset({Outcome.REFUSED, Outcome.ASSUMED})
"""A loop whose wish was not fulfilled, though the released sum is bounded: going on in silence is wrong, too."""
Change = Callable[[Run, Batch], Any]


def before_backward(change: Change) -> Callable[[Run], None]:
    """The ordinary loop, with something done before the forward pass of each batch; it may return another batch."""

    def body(run: Run) -> None:
        for batch in run.private.batches():
            run.optimizer.zero_grad()
            other = change(run, batch)
            run.loss(batch if other is None else other).backward()
            run.optimizer.step()

    return body


def after_backward(change: Change) -> Callable[[Run], None]:
    """The ordinary loop, with something done between backward and step."""

    def body(run: Run) -> None:
        for batch in run.private.batches():
            run.optimizer.zero_grad()
            run.loss(batch).backward()
            change(run, batch)
            run.optimizer.step()

    return body


def after_step(change: Change) -> Callable[[Run], None]:
    def body(run: Run) -> None:
        for batch in run.private.batches():
            run.optimizer.zero_grad()
            run.loss(batch).backward()
            run.optimizer.step()
            change(run, batch)

    return body


def instead(train: Change) -> Callable[[Run], None]:
    """A loop whose body is all its own."""

    def body(run: Run) -> None:
        for batch in run.private.batches():
            train(run, batch)

    return body


# --- what is done to the batch before the model ---------------------------------------------------------------------------


def _mixup(run: Run, batch: Batch) -> Batch:
    return 0.6 * batch[0] + 0.4 * batch[0].flip(0), batch[1]


def _cutmix(run: Run, batch: Batch) -> Batch:
    x = batch[0].clone()
    x[:, :3] = batch[0].flip(0)[:, :3]
    return x, batch[1]


def _sorted(run: Run, batch: Batch) -> Batch:
    return batch[0][batch[0][:, 0].argsort()], batch[1]


def _previous(run: Run, batch: Batch) -> Batch:
    before = run.notes.get("batch", batch[0])
    run.notes["batch"] = batch[0]
    return batch[0] - before.mean(0), batch[1]


def _bank(run: Run, batch: Batch) -> Batch:
    bank = run.notes.setdefault("bank", [])
    bank.append(batch[0].amax(0))
    return batch[0] / (1 + torch.stack(bank).amax()), batch[1]


def _running(run: Run, batch: Batch) -> Batch:
    run.notes["mean"] = 0.5 * run.notes.get("mean", 0.0) + batch[0].mean(0)
    return batch[0] - run.notes["mean"], batch[1]


def _in_place(run: Run, batch: Batch) -> None:
    batch[0].sub_(batch[0].mean(0))


BATCHES: dict[str, Change] = {
    "x - x.mean(0)": lambda run, b: (b[0] - b[0].mean(0), b[1]),
    "(x - x.mean()) / x.std()": lambda run, b: ((b[0] - b[0].mean()) / b[0].std(correction=0), b[1]),
    "x / x.abs().max()": lambda run, b: (b[0] / b[0].abs().max(), b[1]),
    "x - x.mean().item()": lambda run, b: (b[0] - b[0].mean().item(), b[1]),
    "x standardized by numpy": lambda run, b: (b[0] - torch.from_numpy(b[0].numpy().mean(0)), b[1]),
    "x standardized in place": _in_place,
    "mixup": _mixup,
    "cutmix": _cutmix,
    "sorting the batch, not its labels": _sorted,
    "shuffling x, not y": lambda run, b: (b[0].flip(0), b[1]),
    "reversing the labels only": lambda run, b: (b[0], b[1].flip(0)),
    "labels by majority": lambda run, b: (b[0], b[1].mode().values.expand_as(b[1])),
    "labels by the batch's median": lambda run, b: (b[0], (b[0][:, 0] > b[0][:, 0].median()).long()),
    "adversarial step with a batch gradient": lambda run, b: (
        b[0] + b[0].mean(0).sign() * b[0].abs().amax(),
        b[1],
    ),
    "noise scaled by the batch": lambda run, b: (b[0] + torch.sin(b[0]) * b[0].std(correction=0), b[1]),
    "whitening (PCA) of the batch": lambda run, b: (b[0] @ torch.linalg.svd(b[0], full_matrices=False)[2].T, b[1]),
    "imputation by the batch mean": lambda run, b: (torch.where(b[0] < 0, b[0].mean(0), b[0]), b[1]),
    "all rows are the first record": lambda run, b: (b[0][:1].expand_as(b[0]), b[1]),
    "rank features": lambda run, b: (b[0].argsort(0).argsort(0).float(), b[1]),
    "nearest neighbor in the batch": lambda run, b: (
        b[0] + b[0][torch.cdist(b[0], b[0]).fill_diagonal_(9e9).argmin(1)] * 9,
        b[1],
    ),
}

SEVERAL_BATCHES: dict[str, Change] = {
    "mean of the previous batch": _previous,
    "memory bank": _bank,
    "running mean kept in the body": _running,
}


ROWS: dict[str, Change] = {
    "concatenating the batch with itself": lambda run, b: (torch.cat([b[0], b[0]]), torch.cat([b[1], b[1]])),
    "repeating rows": lambda run, b: (b[0].repeat_interleave(2, 0), b[1].repeat_interleave(2)),
    "dropping rows": lambda run, b: (b[0][:5], b[1][:5]),
    "dropping rows by a mask": lambda run, b: (b[0][b[1] != 1], b[1][b[1] != 1]),
    "upsampling a class": lambda run, b: (b[0][b[1].argsort()], b[1].sort().values),
    "shuffling rows and labels": lambda run, b: (b[0].flip(0), b[1].flip(0)),
    "the outlier in every row": lambda run, b: (b[0][b[0].abs().sum(1).argmax()].expand_as(b[0]), b[1]),
    "appending a fixed public row": lambda run, b: (
        torch.cat([b[0], torch.ones(1, FEATURES)]),
        torch.cat([b[1], torch.zeros(1, dtype=torch.long)]),
    ),
    "adding two halves": lambda run, b: (b[0][: len(b[0]) // 2] + b[0][-(len(b[0]) // 2) :], b[1][: len(b[0]) // 2]),
    "using the dataset directly": lambda run, b: run.dataset[: len(b[0])],
    "using three records of the dataset": lambda run, b: run.dataset[:3],
    "one record of the dataset in every row": lambda run, b: (run.dataset[0][0].expand_as(b[0]), b[1]),
    "the dataset's mean": lambda run, b: (b[0] - run.dataset.tensors[0].mean(0), b[1]),
}  # fmt: skip

# --- parameters ----------------------------------------------------------------------------------------------------------


def _half_frozen() -> nn.Module:
    model = perceptron()
    model[0].requires_grad_(False)  # type: ignore[index]
    return model


def _unfreeze(run: Run, batch: Batch) -> None:
    run.model[0].requires_grad_(True)  # type: ignore[index]


def _unfreeze_and_add(run: Run, batch: Batch) -> None:
    layer = run.model[0]  # type: ignore[index]
    if not layer.weight.requires_grad:
        layer.requires_grad_(True)
        run.optimizer.add_param_group({"params": list(layer.parameters())})


def _append(run: Run, batch: Batch) -> None:
    if len(run.model) == 3:  # type: ignore[arg-type]
        torch.manual_seed(5)
        layer = nn.Linear(CLASSES, CLASSES)
        run.model.append(layer)  # type: ignore[operator]
        run.optimizer.add_param_group({"params": list(layer.parameters())})


def _replace(run: Run, batch: Batch) -> None:
    torch.manual_seed(5)
    run.model[2] = nn.Linear(8, CLASSES)  # type: ignore[index]


def _replace_and_hold(run: Run, batch: Batch) -> None:
    if "new" not in run.notes:
        torch.manual_seed(5)
        run.notes["new"] = run.model[2] = nn.Linear(8, CLASSES)  # type: ignore[index]
        run.optimizer.add_param_group({"params": list(run.notes["new"].parameters())})


def _replace_parameter(run: Run, batch: Batch) -> None:
    if "new" not in run.notes:
        run.notes["new"] = True
        run.model[2].weight = nn.Parameter(run.model[2].weight.detach().clone())  # type: ignore[index]


def _swap_in_optimizer(run: Run, batch: Batch) -> None:
    if "new" not in run.notes:
        new = run.notes["new"] = run.model[2].weight = nn.Parameter(run.model[2].weight.detach().clone())  # type: ignore[index]
        run.optimizer.param_groups[0]["params"][2] = new


def _between_loops(run: Run) -> None:
    for batch in run.private.batches(steps=1):
        run.optimizer.zero_grad()
        run.loss(batch).backward()
        run.optimizer.step()
    _replace_and_hold(run, ())
    for batch in run.private.batches(steps=1):
        run.optimizer.zero_grad()
        run.loss(batch).backward()
        run.optimizer.step()


def _unfrozen_between_loops(run: Run) -> None:
    for change in (lambda: None, lambda: _unfreeze_and_add(run, ())):
        change()
        for batch in run.private.batches(steps=1):
            run.optimizer.zero_grad()
            run.loss(batch).backward()
            run.optimizer.step()


def _second_optimizer(run: Run, batch: Batch) -> None:
    """Steps on whatever is in the gradients, before the private step."""
    second = torch.optim.SGD(run.model.parameters(), lr=0.1)
    second.step()


def _second_optimizer_of_its_own(run: Run, batch: Batch) -> None:
    second = torch.optim.SGD(run.model.parameters(), lr=0.1)
    second.zero_grad()
    run.loss(batch).backward()
    second.step()


def _second_over_frozen(run: Run, batch: Batch) -> None:
    """A second optimizer trains a layer that the plan believes to be frozen."""
    layer = run.model[0]  # type: ignore[index]
    layer.requires_grad_(True)
    run.optimizer.zero_grad()
    run.loss(batch).backward()
    torch.optim.SGD(layer.parameters(), lr=0.1).step()
    run.optimizer.step()


def _second_model(run: Run) -> None:
    """A head outside of the model that `make_private` knows, trained by its own optimizer on the records."""
    torch.manual_seed(5)
    head = nn.Linear(CLASSES, CLASSES)
    second = torch.optim.SGD(head.parameters(), lr=0.1)
    for batch in run.private.batches():
        run.optimizer.zero_grad()
        second.zero_grad()
        F.cross_entropy(head(run.model(batch[0])), batch[1]).backward()
        run.optimizer.step()
        second.step()


def _second_private(run: Run) -> None:
    second = Watching(run.model.parameters())
    other = privet.make_private(
        run.model, second, run.dataset, batch_size=len(run.dataset), steps=1, noise_multiplier=1e-6, delta=1e-5,
        max_grad_norm=1e6, seed=0,
    )  # fmt: skip
    run.notes["second"] = other
    classic(run)
    run.optimizer.seen += second.seen  # type: ignore[attr-defined]


def _two_privates_at_once(run: Run) -> None:
    second = Watching(run.model.parameters())
    other = privet.make_private(
        run.model, second, run.dataset, batch_size=len(run.dataset), steps=1, noise_multiplier=1e-6, delta=1e-5,
        max_grad_norm=1e6, seed=0,
    )  # fmt: skip
    for one, two in zip(run.private.batches(), other.batches(), strict=True):
        run.loss(one).backward()
        run.optimizer.step()
        run.loss(two).backward()
        second.step()
    run.optimizer.seen += second.seen  # type: ignore[attr-defined]


def _freeze(run: Run, batch: Batch) -> None:
    run.model[0].requires_grad_(False)  # type: ignore[index]


def _frozen_does_not_drift(run: Run) -> str:
    last = run.optimizer.seen[-1][:2]  # type: ignore[attr-defined]
    if any(g is not None and float(g.abs().max()) > 0 for g in last):
        return "a layer that was frozen in the loop is given noise"
    return ""


PARAMETERS: dict[str, tuple[Callable[[], nn.Module], Callable[[Run], None]]] = {
    "requires_grad_ in the loop, then add_param_group": (_half_frozen, before_backward(_unfreeze_and_add)),
    "requires_grad_ between two loops": (_half_frozen, _unfrozen_between_loops),
    "a layer appended in the loop": (perceptron, before_backward(_append)),
    "a layer replaced in the loop": (perceptron, before_backward(_replace)),
    "a layer replaced and held by the optimizer": (perceptron, before_backward(_replace_and_hold)),
    "a layer replaced between two loops": (perceptron, _between_loops),
    "a parameter replaced": (perceptron, before_backward(_replace_parameter)),
    "a parameter swapped in the optimizer": (perceptron, before_backward(_swap_in_optimizer)),
    "a second optimizer before the step": (perceptron, after_backward(_second_optimizer)),
    "a second optimizer after the step": (perceptron, after_step(_second_optimizer)),
    "a second optimizer with a backward pass of its own": (perceptron, after_step(_second_optimizer_of_its_own)),
    "a second optimizer over a layer that was frozen": (_half_frozen, instead(_second_over_frozen)),
    "a head outside the model": (perceptron, _second_model),
    "a second make_private with a large norm": (perceptron, _second_private),
    "two private loops at once": (perceptron, _two_privates_at_once),
}

# --- gradients and backward passes ----------------------------------------------------------------------------------------


def _penalty_first(run: Run, batch: Batch) -> None:
    (0.1 * sum(p.square().sum() for p in run.model.parameters())).backward()  # type: ignore[union-attr]


def _penalty_in_loss(run: Run, batch: Batch) -> None:
    run.optimizer.zero_grad()
    loss = run.loss(batch) + 0.1 * sum(p.square().sum() for p in run.model.parameters())
    loss.backward()
    run.optimizer.step()


def _data_penalty_first(run: Run, batch: Batch) -> None:
    """Not a penalty: a raw gradient of the records, formed by functional calls."""
    weight = run.model[0].weight  # type: ignore[index]
    F.linear(batch[0], weight).square().mean().backward()


def _clip_user(run: Run, batch: Batch) -> None:
    norm = nn.utils.clip_grad_norm_(run.model.parameters(), 0.5)
    run.notes["norm"] = max(float(norm), run.notes.get("norm", 0.0))


def _two_backward(run: Run, batch: Batch) -> None:
    run.optimizer.zero_grad()
    run.loss(batch).backward()
    F.mse_loss(run.model(batch[0]), torch.zeros(len(batch[0]), CLASSES)).backward()
    run.optimizer.step()


def _retained(run: Run, batch: Batch) -> None:
    run.optimizer.zero_grad()
    loss = run.loss(batch)
    loss.backward(retain_graph=True)
    loss.backward()
    run.optimizer.step()


def _step_twice(run: Run, batch: Batch) -> None:
    run.optimizer.zero_grad()
    run.loss(batch).backward()
    run.optimizer.step()
    run.optimizer.step()


def _stale(run: Run, batch: Batch) -> None:
    """Always the first batch."""
    first = run.notes.setdefault("first", batch)
    run.optimizer.zero_grad()
    run.loss(first).backward()
    run.optimizer.step()


def _stale_loss(run: Run, batch: Batch) -> None:
    """The loss of the batch before, kept with its graph."""
    run.optimizer.zero_grad()
    now = run.loss(batch)
    run.notes.get("loss", run.loss(batch)).backward()
    run.notes["loss"] = now
    run.optimizer.step()


def _grad_written(run: Run, batch: Batch) -> None:
    """The gradients are overwritten with raw ones."""
    with_copy = copy.deepcopy(run.model)
    cross_entropy(with_copy, batch).backward()
    for p, q in zip(run.model.parameters(), with_copy.parameters(), strict=True):
        p.grad = q.grad


def _grad_added(run: Run, batch: Batch) -> None:
    for p in run.model.parameters():
        p.grad = torch.full_like(p, float(batch[0].mean())) if p.grad is None else p.grad + batch[0].mean()


def _manual_sgd(run: Run, batch: Batch) -> None:
    parameters = list(run.model.parameters())
    found = torch.autograd.grad(run.loss(batch), parameters)
    with torch.no_grad():
        for p, g in zip(parameters, found, strict=True):
            p -= 0.1 * g
    run.optimizer.zero_grad()
    run.loss(batch).backward()
    run.optimizer.step()


def _functional_call(run: Run, batch: Batch) -> None:
    """A backward pass through copies of the parameters, stepped by hand."""
    copies = {n: p.detach().clone().requires_grad_(True) for n, p in run.model.named_parameters()}
    F.cross_entropy(torch.func.functional_call(run.model, copies, (batch[0],)), batch[1]).backward()
    with torch.no_grad():
        for n, p in run.model.named_parameters():
            p -= 0.1 * copies[n].grad
    run.optimizer.zero_grad()
    run.loss(batch).backward()
    run.optimizer.step()


def _swapped_gradient(run: Run, batch: Batch) -> None:
    """The hook of a parameter adds something of the batch to whatever gradient comes by."""
    if "hooked" not in run.notes:
        run.notes["hooked"] = [p.register_hook(lambda g: g + 9 * batch[0].mean()) for p in run.model.parameters()]


def _accumulate_hook(run: Run, batch: Batch) -> None:
    def hook(p: Tensor) -> None:
        p.grad = torch.full_like(p, float(batch[0].mean()))

    if "hooked" not in run.notes:
        run.notes["hooked"] = [p.register_post_accumulate_grad_hook(hook) for p in run.model.parameters()]


def _step_hook(run: Run, batch: Batch) -> None:
    """A hook of the optimizer that overwrites the private gradient before it is used."""

    def hook(optimizer: Any, args: Any, kwargs: Any) -> None:
        for p in run.model.parameters():
            p.grad = torch.full_like(p, float(batch[0].mean()))

    if "hooked" not in run.notes:
        run.notes["hooked"] = run.optimizer.register_step_pre_hook(hook)


def _forward_hook(run: Run, batch: Batch) -> None:
    if "hooked" not in run.notes:
        run.notes["hooked"] = run.model[0].register_forward_hook(lambda m, i, o: o - o.mean(0))  # type: ignore[index]


def _pre_hook(run: Run, batch: Batch) -> None:
    if "hooked" not in run.notes:
        run.notes["hooked"] = run.model.register_forward_pre_hook(lambda m, i: (i[0] - i[0].mean(0),))


def _backward_hook(run: Run, batch: Batch) -> None:
    if "hooked" not in run.notes:
        run.notes["hooked"] = run.model[1].register_full_backward_hook(  # type: ignore[index]
            lambda m, given, got: (given[0].flip(0) + given[0].sum(0),)
        )


def _patched_forward(run: Run, batch: Batch) -> None:
    first = run.model[0]  # type: ignore[index]
    first.forward = lambda x: F.linear(x - x.mean(0), first.weight, first.bias)


def _closure(run: Run, batch: Batch) -> None:
    def closure() -> Tensor:
        run.optimizer.zero_grad()
        loss = run.loss(batch)
        loss.backward()
        return loss

    run.optimizer.step(closure)


def _weighted_backward(run: Run, batch: Batch) -> None:
    run.optimizer.zero_grad()
    losses = F.cross_entropy(run.model(batch[0]), batch[1], reduction="none")
    losses.backward(gradient=losses.detach().softmax(0) * 50)
    run.optimizer.step()


def _two_losses(run: Run, batch: Batch) -> None:
    run.optimizer.zero_grad()
    out = run.model(batch[0])
    torch.autograd.backward([F.cross_entropy(out, batch[1]), out.square().sum()])
    run.optimizer.step()


def _no_backward(run: Run, batch: Batch) -> None:
    run.loss(batch)
    run.optimizer.step()


def _between_modules(run: Run, batch: Batch) -> None:
    """Submodules are called one by one, and the records mixed between them."""
    run.optimizer.zero_grad()
    h = run.model[1](run.model[0](batch[0]))  # type: ignore[index]
    F.cross_entropy(run.model[2](h - h.mean(0)), batch[1]).backward()  # type: ignore[index]
    run.optimizer.step()


def _half_and_half(run: Run, batch: Batch) -> None:
    """Two forward passes of half of the batch each, and a loss over both."""
    run.optimizer.zero_grad()
    half = max(len(batch[0]) // 2, 1)
    out = torch.cat([run.model(batch[0][:half]), run.model(batch[0][half:])])
    F.cross_entropy(out, batch[1]).backward()
    run.optimizer.step()


def _across_halves(run: Run, batch: Batch) -> None:
    run.optimizer.zero_grad()
    half = max(len(batch[0]) // 2, 1)
    one, two = run.model(batch[0][:half]), run.model(batch[0][half:])
    (F.cross_entropy(torch.cat([one, two]), batch[1]) + (one.mean(0) - two.mean(0)).square().sum()).backward()
    run.optimizer.step()


def _siamese(run: Run, batch: Batch) -> None:
    """The model sees the batch twice, and compares different records."""
    run.optimizer.zero_grad()
    (run.model(batch[0]) - run.model(batch[0].flip(0))).square().mean().backward()
    run.optimizer.step()


BACKWARD: dict[str, Callable[[Run], None]] = {
    "data in a backward pass before the forward pass": before_backward(_data_penalty_first),
    "two backward passes": instead(_two_backward),
    "backward twice on one loss": instead(_retained),
    "optimizer.step() twice": instead(_step_twice),
    "gradients overwritten with raw ones": after_backward(_grad_written),
    "batch added to the gradients": after_backward(_grad_added),
    "SGD by hand through functional_call": instead(_functional_call),
    "a hook on parameters": before_backward(_swapped_gradient),
    "a post-accumulate hook": before_backward(_accumulate_hook),
    "a hook of the optimizer": before_backward(_step_hook),
    "a forward hook that centers": before_backward(_forward_hook),
    "a forward pre-hook that centers": before_backward(_pre_hook),
    "a backward hook that mixes": before_backward(_backward_hook),
    "a patched forward": before_backward(_patched_forward),
    "optimizer.step(closure)": instead(_closure),
    "losses.backward(gradient=softmax)": instead(_weighted_backward),
    "backward of two losses at once": instead(_two_losses),
    "a step without backward": instead(_no_backward),
    "records mixed between submodules": instead(_between_modules),
    "two halves that are compared": instead(_across_halves),
    "the batch twice, in two orders": instead(_siamese),
    "two halves of the batch": instead(_half_and_half),
}

# --- state ---------------------------------------------------------------------------------------------------------------


@torch.no_grad()
def _weights_in_place(run: Run, batch: Batch) -> None:
    run.model[0].weight.add_(batch[0].mean())  # type: ignore[index]


def _weights_by_data(run: Run, batch: Batch) -> None:
    run.model[0].weight.data = run.model[0].weight.data + batch[0].mean()  # type: ignore[index]


def _weights_loaded(run: Run, batch: Batch) -> None:
    state = run.model.state_dict()
    state["0.bias"] = state["0.bias"] + batch[0].mean()
    run.model.load_state_dict(state)


def _optimizer_state(run: Run, batch: Batch) -> None:
    for p in run.model.parameters():
        run.optimizer.state[p]["momentum_buffer"] = torch.full_like(p, float(batch[0].mean()))


def _learning_rate(run: Run, batch: Batch) -> None:
    run.optimizer.param_groups[0]["lr"] = float(batch[0].abs().mean())


def _plateau(run: Run, batch: Batch) -> None:
    with torch.no_grad():
        value = float(F.cross_entropy(run.model(batch[0]), batch[1]))
    run.optimizer.param_groups[0]["lr"] = value


def _buffer_registered(run: Run, batch: Batch) -> None:
    run.model.register_buffer("center", batch[0].mean(0))


def _output_bias_initialized(run: Run, batch: Batch) -> None:
    """The output bias from the batch's label counts, as detection heads do."""
    with torch.no_grad():
        run.model[2].bias.copy_(torch.bincount(batch[1], minlength=CLASSES).float())  # type: ignore[index]


STATE: dict[str, Change] = {
    "weights changed in place": _weights_in_place,
    "weights set through .data": _weights_by_data,
    "weights loaded in the loop": _weights_loaded,
    "optimizer.state edited": _optimizer_state,
    "learning rate from the batch": _learning_rate,
    "learning rate from the private loss": _plateau,
    "a buffer registered in the loop": _buffer_registered,
    "bias from label counts": _output_bias_initialized,
}

# --- ordinary loops --------------------------------------------------------------------------------------------------------


def _logged(run: Run) -> None:
    total = 0.0
    for batch in run.private.batches():
        run.optimizer.zero_grad()
        loss = run.loss(batch)
        loss.backward()
        run.optimizer.step()
        total += loss.item() * len(batch[0])
    run.notes["total"] = total


def _evaluated(run: Run) -> None:
    public = torch.ones(3, FEATURES)
    for batch in run.private.batches():
        run.optimizer.zero_grad()
        run.loss(batch).backward()
        run.optimizer.step()
        run.model.eval()
        with torch.no_grad():
            run.notes["accuracy"] = float((run.model(public).argmax(1) == 0).float().mean())
        run.model.train()


def _evaluated_between(run: Run) -> None:
    for batch in run.private.batches():
        run.optimizer.zero_grad()
        with torch.no_grad():
            run.notes["before"] = float(run.loss(batch))
        run.loss(batch).backward()
        run.optimizer.step()


def _break_and_go_on(run: Run) -> None:
    for batch in run.private.batches():
        run.optimizer.zero_grad()
        run.loss(batch).backward()
        run.optimizer.step()
        break
    classic(run)


def _epochs(run: Run) -> None:
    for _ in range(2):
        for batch in run.private.batches(steps=1):
            run.optimizer.zero_grad()
            run.loss(batch).backward()
            run.optimizer.step()


def _deepcopied(run: Run) -> None:
    for batch in run.private.batches():
        run.optimizer.zero_grad()
        run.notes["copy"] = copy.deepcopy(run.model)
        run.loss(batch).backward()
        run.optimizer.step()


def _set_to_none(run: Run) -> None:
    for batch in run.private.batches():
        run.loss(batch).backward()
        run.optimizer.step()
        run.model.zero_grad(set_to_none=False)


def _unpacked(run: Run) -> None:
    for x, y in run.private.batches():
        F.cross_entropy(run.model(x), y).backward()
        run.optimizer.step()
        run.optimizer.zero_grad()


def _vector_backward(run: Run) -> None:
    for x, y in run.private.batches():
        losses = F.cross_entropy(run.model(x), y, reduction="none")
        run.optimizer.zero_grad()
        if hasattr(run.private, "backward"):
            run.private.backward(losses)
        else:
            losses.sum().backward()
        run.optimizer.step()


def _vector_step(run: Run) -> None:
    for x, y in run.private.batches():
        step_on(run, F.cross_entropy(run.model(x), y, reduction="none"))


def _moved_by_hand(run: Run) -> None:
    for x, y in run.private.batches():
        x, y = x.to("cpu"), y.to("cpu").long()
        run.optimizer.zero_grad()
        F.cross_entropy(run.model(x.float()), y).backward()
        run.optimizer.step()


def _augmented(run: Run) -> None:
    for x, y in run.private.batches():
        run.optimizer.zero_grad()
        F.cross_entropy(run.model(x.flip(1) * 0.9 + 0.1), y).backward()
        run.optimizer.step()


def _augmented_oracle(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch[0].flip(1) * 0.9 + 0.1), batch[1])


ORDINARY: dict[str, tuple[Callable[[Run], None], dict[str, Any]]] = {
    "classic": (classic, {}),
    "loss.item() logged": (_logged, {"steps": 2}),
    "evaluation inside the loop": (_evaluated, {"steps": 2}),
    "break and go on": (_break_and_go_on, {"steps": 3}),
    "epochs of steps": (_epochs, {"steps": 2}),
    "deepcopy in the loop": (_deepcopied, {}),
    "zero_grad after the step": (_set_to_none, {"steps": 2}),
    "unpacked batches": (_unpacked, {}),
    "private.backward(losses)": (_vector_backward, {}),
    "private.step(losses)": (_vector_step, {}),
    "batch moved and cast": (_moved_by_hand, {}),
    "physical batches of 3": (classic, {"settings": {"performance": Performance(physical_batch_size=3)}}),
    "physical batches of 1": (classic, {"settings": {"performance": Performance(physical_batch_size=1)}}),
    "physical batches of 3, two steps": (
        classic,
        {"settings": {"performance": Performance(physical_batch_size=3)}, "steps": 2},
    ),
}


def _nested(run: Run) -> None:
    for batch in run.private.batches():
        for inner in run.private.batches():
            run.optimizer.zero_grad()
            run.loss(inner).backward()
            run.optimizer.step()
        run.loss(batch).backward()
        run.optimizer.step()


def _caught(run: Run) -> None:
    """An error that a record causes, caught by the loop, which goes on."""
    for batch in run.private.batches():
        try:
            run.optimizer.zero_grad()
            if batch[0].max() > 20:
                raise ValueError("too large")
            run.loss(batch).backward()
            run.optimizer.step()
        except ValueError:
            continue


def _skipped(run: Run) -> None:
    """Batches that hold the outlier are skipped."""
    for batch in run.private.batches():
        if bool(batch[0].max() > 20):
            continue
        run.optimizer.zero_grad()
        run.loss(batch).backward()
        run.optimizer.step()


def _accumulated(run: Run) -> None:
    """The user's own gradient accumulation: two batches, one step."""
    for number, batch in enumerate(run.private.batches()):
        run.loss(batch).backward()
        if number % 2:
            run.optimizer.step()
            run.optimizer.zero_grad()


def _eval_with_gradient(run: Run) -> None:
    """A forward pass on public data with gradients, which nobody uses."""
    for batch in run.private.batches():
        run.optimizer.zero_grad()
        run.notes["out"] = run.model(torch.ones(len(batch[0]), FEATURES))
        run.loss(batch).backward()
        run.optimizer.step()


def _public_batch(run: Run) -> None:
    """`private.public` is given something of the batch."""
    for batch in run.private.batches():
        run.optimizer.zero_grad()
        run.loss(batch).backward()
        hidden = batch[0] * 1.0
        _publish(run, lambda hidden=hidden: run.model(hidden).square().mean())
        run.optimizer.step()


def _public_output(run: Run) -> None:
    for batch in run.private.batches():
        run.optimizer.zero_grad()
        run.loss(batch).backward()
        value = float(batch[0].mean())
        _publish(run, lambda value=value: value * sum(p.sum() for p in run.model.parameters()))
        run.optimizer.step()


def _publish(run: Run, function: Callable[[], Any]) -> None:
    import inspect

    if inspect.signature(run.private.public).parameters:
        run.private.public(function)
    else:
        with run.private.public():
            function().backward()


def _weights_penalty(model: nn.Module) -> Tensor:
    total = torch.zeros(())
    for p in model.parameters():
        total = total + 5 * p.square().sum()
    return total


def _trajectory(make: Callable[[Any], torch.optim.Optimizer], steps: int) -> Callable[[Run], str]:
    """The same optimizer, on the clipped sums of single records in float64: where it must have come to."""

    def verify(run: Run) -> str:
        trap = run.trap
        assert trap.oracle is not None and trap.norm is not None
        model = fresh(trap).double()
        optimizer = make(model.parameters())
        records = len(tensors_of(trap)[0])
        for _ in range(steps):
            now = copy.deepcopy(model).float()
            moved = Trap(trap.name, trap.kind, lambda now=now: copy.deepcopy(now), trap.loss, trap.data)
            total = clipped_sum(record_gradients(moved, trap.oracle), trap.norm) / records
            place = 0
            for p in model.parameters():
                p.grad = total[place : place + p.numel()].view_as(p).clone()
                place += p.numel()
            optimizer.step()
        for p, q in zip(model.parameters(), run.model.parameters(), strict=True):
            if not torch.allclose(p.float(), q.detach(), atol=2e-4, rtol=1e-3):
                return "the parameters are not where the same optimizer comes to on single records"
        return ""

    return verify


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD with momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "SGD with weight decay": lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.1),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, eps=1e-3),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05, eps=1e-3),
}


def _saturated_model() -> nn.Module:
    model = nn.Linear(FEATURES, CLASSES)
    with torch.no_grad():
        model.bias.copy_(torch.tensor([500.0, 0.0, 0.0]))
    return model


def _all_nan() -> tuple[Tensor, Tensor]:
    x, y = rows()
    return torch.full_like(x, float("nan")), y


def _one_nan() -> tuple[Tensor, Tensor]:
    x, y = rows()
    x[OUTLIER, 1] = float("nan")
    return x, y


def _one_inf() -> tuple[Tensor, Tensor]:
    x, y = rows()
    x[OUTLIER, 1] = float("inf")
    return x, y


def _loop(name: str, kind: str, body: Callable[[Run], None], **more: Any) -> Trap:
    settings: dict[str, Any] = {"norm": 0.05, "bites": False, **more}
    model, data = settings.pop("model", perceptron), settings.pop("data", rows)
    return Trap(name, kind, model, settings.pop("loss", cross_entropy), data, body=body, **settings)


LOOPS: list[Trap] = [
    *(_loop(name, "batch", before_backward(change)) for name, change in BATCHES.items()),
    *(_loop(name, "batch", before_backward(change), steps=2) for name, change in SEVERAL_BATCHES.items()),
    *(_loop(name, "rows of the batch", before_backward(change)) for name, change in ROWS.items()),
    *(
        _loop(name, "parameters", body, model=model, steps=2 if "between" in name else 1)
        for name, (model, body) in PARAMETERS.items()
    ),
    _loop(
        "requires_grad_ in the loop, held before", "parameters", before_backward(_unfreeze), model=_half_frozen,
        holds_all=True,
    ),
    _loop("a layer frozen in the loop", "parameters", before_backward(_freeze), verify=_frozen_does_not_drift),
    *(_loop(name, "backward", body) for name, body in BACKWARD.items()),
    _loop("SGD by hand from autograd.grad", "backward", instead(_manual_sgd), allowed=SAFE | {Outcome.CRASHED}),
    _loop("a penalty's backward before the forward pass", "backward", before_backward(_penalty_first), allowed=NOT_RIGHT),
    _loop("a penalty of the weights in the loss", "backward", instead(_penalty_in_loss), allowed=NOT_RIGHT),
    _loop(
        "clip_grad_norm_ before the step", "backward", after_backward(_clip_user),
        verify=lambda run: "" if run.notes["norm"] > 0 else "the user's clip_grad_norm_ saw a norm of 0",
    ),
    _loop("always the first batch", "backward", instead(_stale), steps=2),
    _loop("the loss of the batch before", "backward", instead(_stale_loss), steps=2),
    # torch wraps an error inside load_state_dict into one of its own.
    *(
        _loop(f"{name}, {when}", "state", place(change), allowed=SAFE | {Outcome.CRASHED} if "loaded" in name else SAFE)
        for when, place in (("before", before_backward), ("after", after_step))
        for name, change in STATE.items()
    ),
    _loop("nested loops", "loop", _nested, steps=2),
    _loop("an error of a record, caught", "fate", _caught),
    _loop("batches skipped by a record", "fate", _skipped),
    _loop("the user's own accumulation", "loop", _accumulated, steps=2),
    _loop("the loss read before it is trained on", "loop", _evaluated_between),
    _loop("a forward pass that nobody uses", "loop", _eval_with_gradient),
    _loop("private.public with the batch", "public", _public_batch, data=aligned),
    _loop("private.public with a number of the batch", "public", _public_output),
    _loop(
        "a public penalty with physical batches", "public", classic, public=_weights_penalty,
        data=lambda: tuple(t[:7] for t in rows()), settings={"performance": Performance(physical_batch_size=3)},
    ),
    _loop(
        "a public penalty with an empty batch", "public", classic, public=_weights_penalty, alone=1
    ),
    _loop("a batch of one NaN record", "fate", classic, data=_one_nan, alone=OUTLIER),
    _loop("a batch of one infinite record", "fate", classic, data=_one_inf, alone=OUTLIER),
    _loop("a batch of NaN records", "fate", classic, data=_all_nan, allowed=SOUND),
    _loop("a saturated record alone", "fate", classic, alone=0, model=_saturated_model),
    *(
        _loop(name, "sound loop", classic, data=data, allowed=SOUND, norm=0.5, oracle=cross_entropy)
        for name, data in (("one NaN record", _one_nan), ("one infinite record", _one_inf))
    ),
    _loop("a record alone", "sound loop", classic, alone=1, allowed=SOUND, norm=0.5, oracle=cross_entropy),
    *(
        _loop(name, "sound loop", body, allowed=SOUND, norm=None, oracle=cross_entropy, **more)
        for name, (body, more) in ORDINARY.items()
    ),
    _loop("augmentation of each record", "sound loop", _augmented, allowed=SOUND, norm=None, oracle=_augmented_oracle),
    *(
        Trap(
            name, "sound optimizer", perceptron, cross_entropy, rows, allowed=SOUND, norm=0.5, steps=3, optimizer=make,
            left_out=(), oracle=cross_entropy, verify=_trajectory(make, 3),
        )
        for name, make in OPTIMIZERS.items()
    ),
]  # fmt: skip
