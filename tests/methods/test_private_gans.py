"""The sound GANs, on small records: what they promise, what they use, and that they learn."""

import pytest
import torch
from torch import nn

from privet.data import Split
from privet.errors import InputError
from privet.methods import Context
from privet.methods.dpgan import Dpgan, balanced_labels
from privet.methods.frozen_noise_layer_gan import FrozenNoiseLayerGan, Layout
from privet.methods.noise_layer_gan import PublishedNoiseLayerGan
from privet.methods.synthetic import Order
from privet.noise import GaussianNoise
from privet.privacy import Ledger, PaddedPoisson, Proved, Relation
from privet.training import BudgetExhausted


def stripes(count=300, size=8, seed=0):
    """Images of two classes: bright above or bright below; in other places a little noise."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 2
    inputs = 0.1 * torch.rand(count, 1, size, size, generator=generator)
    inputs[labels == 0, :, : size // 2] += 0.8
    inputs[labels == 1, :, size // 2 :] += 0.8
    return Split(inputs, labels)


SMALL = {"dimension": 4, "epochs": 4.0, "rows": 100, "steps": 30, "width": 32, "latent": 4, "scale": 2.0}
METHODS = {
    "components": FrozenNoiseLayerGan(**SMALL),
    "random": FrozenNoiseLayerGan(features="random", **SMALL),
    "scattering": FrozenNoiseLayerGan(features="scattering", **SMALL),
    "fixed": FrozenNoiseLayerGan(sampling="fixed", **SMALL),
    "dpgan": Dpgan(lot=60, steps=6, turns=2, made=20, width=4, latent=4),
    "convolutional": Dpgan(lot=60, steps=4, turns=2, made=20, width=4, latent=4, convolutional=True),
}


def synthesize(method, records=None, *, labels="protected", epsilon=3.0, size=40, seed=0):
    ledger = Ledger(relation=method.relation)
    order = Order(2, size, epsilon, 1e-5, labels=labels, seed=seed)
    return method.synthesize(records or stripes(), order, Context(ledger)), ledger


@pytest.mark.parametrize("name", METHODS)
def test_the_budget_is_spent_and_not_passed_with_a_proof(name):
    made, ledger = synthesize(METHODS[name])
    spent = ledger.spent(1e-5)
    assert 2.9 < spent.epsilon <= 3.0 and spent.guarantee == Proved()
    assert spent.relation is (Relation.REPLACE_ONE if name == "fixed" else Relation.ADD_REMOVE)
    assert made.inputs.shape == (40, 1, 8, 8) and made.inputs.dtype == torch.float32
    assert float(made.inputs.min()) >= 0 and float(made.inputs.max()) <= 1
    assert set(made.labels.tolist()) == {0, 1}


@pytest.mark.parametrize(
    "method",
    [METHODS["components"], METHODS["dpgan"], PublishedNoiseLayerGan(epochs=4.0, batch_size=60, width=4, latent=4)],
    ids=lambda method: method.title[:15],
)
def test_a_game_that_is_ended_gives_what_was_trained_until_then(method):
    steps = []

    def end(step):
        if "loss" in step:
            steps.append(step)
            if len(steps) == 3:
                raise BudgetExhausted("the time is up")

    ledger = Ledger(relation=method.relation)
    made = method.synthesize(stripes(), Order(2, 40, 3.0, 1e-5, seed=0), Context(ledger, on_step=end))
    assert len(made.inputs) == 40
    assert [step["step"] for step in steps] == [1, 2, 3] and steps[-1]["step"] < steps[-1]["steps"]
    assert ledger.spent(1e-5).epsilon <= 3.0


@pytest.mark.parametrize("name", METHODS)
def test_records_are_used_through_released_values_alone(name, monkeypatch):
    """Run on other records, with the noisy values of the first run in place of its own: the same examples, bit for bit."""
    released, add = [], GaussianNoise.add

    def record(self, bounded, source):
        released.append(add(self, bounded, source))
        return {key: value.clone() for key, value in released[-1].items()}

    monkeypatch.setattr(GaussianNoise, "add", record)
    first, _ = synthesize(METHODS[name])
    replayed = iter(released)
    monkeypatch.setattr(GaussianNoise, "add", lambda self, bounded, source: dict(next(replayed)))
    others = stripes(seed=1)
    second, _ = synthesize(METHODS[name], Split(1 - others.inputs, 1 - others.labels))
    assert next(replayed, None) is None
    assert torch.equal(first.inputs, second.inputs) and torch.equal(first.labels, second.labels)


def test_the_published_method_uses_more_than_that():
    """The noise of its layer is the same in both runs, and other records give other examples all the same."""
    method = PublishedNoiseLayerGan(epochs=0.5, batch_size=20, width=2, latent=4)
    first, _ = synthesize(method)
    second, _ = synthesize(method, Split(1 - stripes().inputs, stripes().labels))
    assert not torch.equal(first.inputs, second.inputs)


@pytest.mark.parametrize(
    ("method", "epsilon"),
    [
        (
            FrozenNoiseLayerGan(**(SMALL | {"epochs": 10.0, "steps": 400, "learning_rate": 2e-3, "averaging": 0.9})),
            30.0,
        ),
        pytest.param(
            Dpgan(lot=100, steps=150, turns=1, made=60, width=4, latent=4, clip=1.0, averaging=0.9),
            30.0,
            marks=pytest.mark.slow,
        ),
    ],
    ids=["noise layer", "dpgan"],
)
def test_classes_are_learnt_where_the_budget_is_ample(method, epsilon):
    made, _ = synthesize(method, stripes(600), epsilon=epsilon)
    lighter_above = made.inputs[:, 0, :4].mean((1, 2)) - made.inputs[:, 0, 4:].mean((1, 2))
    assert float(lighter_above[made.labels == 0].mean()) > 0.2
    assert float(lighter_above[made.labels == 1].mean()) < -0.2


def test_a_row_with_its_label_has_norm_one_at_most_and_the_label_its_share():
    layout = Layout(nn.Flatten(), 3, 0.25)
    rows = layout.rows(torch.tensor([[30.0, 40.0], [0.1, 0.0]]), torch.tensor([2, 0]))
    assert torch.allclose(rows[0], torch.tensor([0.6 * 0.75**0.5, 0.8 * 0.75**0.5, 0, 0, 0.5]))
    assert torch.allclose(rows[1], torch.tensor([0.1, 0, 0.5, 0, 0]))


def test_the_ledger_of_padded_rows_counts_their_overflow():
    _, ledger = synthesize(METHODS["random"])
    ((event, _),) = ledger
    assert isinstance(event.event, PaddedPoisson)
    assert 0 < event.count * event.event.overflow <= 1e-8


def test_rows_of_a_table_go_through_dpgan_and_the_noise_layer():
    generator = torch.Generator().manual_seed(0)
    rows = Split(torch.rand(200, 5, generator=generator), (torch.arange(200) % 4 == 0).long())
    for method in (METHODS["dpgan"], METHODS["components"]):
        made, _ = synthesize(method, rows)
        assert made.inputs.shape == (40, 5)
    with pytest.raises(InputError, match="'random' are for images"):
        synthesize(METHODS["random"], rows)


def test_dpgan_counts_labels_with_noise():
    """Exact counts of the classes would tell of a record that was added, whoever knows the labels."""
    _, ledger = synthesize(METHODS["dpgan"])
    assert next(iter(ledger))[0] != max(ledger, key=lambda run: run[1])[0]  # the counts, before the steps


def test_an_embedding_of_one_s_own_stands_in_front_of_the_noise():
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 3)).requires_grad_(False)
    made, ledger = synthesize(FrozenNoiseLayerGan(module=module, **SMALL))
    assert "of your own" in made.settings["In front of the noise"] and len(ledger) == 1


def test_labels_are_dealt_in_proportion():
    labels = balanced_labels(torch.tensor([1.0, 0.0, 3.0]), 43)
    assert torch.bincount(labels).tolist() == [11, 1, 31]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: FrozenNoiseLayerGan(features="learnt"), "components, random, scattering"),
        (lambda: FrozenNoiseLayerGan(label_share=1.0), "label_share is a finite number above 0 and below 1"),
        (lambda: FrozenNoiseLayerGan(sampling="shuffled"), "padded or fixed"),
        (lambda: PublishedNoiseLayerGan(labels="votes"), "takes the labels as public"),
        (lambda: synthesize(FrozenNoiseLayerGan(**(SMALL | {"dimension": 65}))), "from 1 to 64 components"),
    ],
)
def test_what_is_refused(call, words):
    with pytest.raises(InputError, match=words):
        call()
