"""The noise-layer GAN as published: its networks, its restrictions, its claim, and why the claim does not hold."""

import pytest
import torch
from torch import nn

from privet.attacks import outside, span
from privet.data import Split
from privet.errors import InputError
from privet.methods import Context
from privet.methods.dpgan import called_real
from privet.methods.noise_layer_gan import CLAIM, PublishedNoiseLayerGan, check_restrictions, printed_sigma
from privet.methods.synthetic import Order
from privet.models.gans import Generator, discriminator
from privet.noise.gaussian import NoiseLayer
from privet.privacy import Claimed, Gaussian, Ledger, accountant_named


def source(seed=0):
    return torch.Generator().manual_seed(seed)


def images(count=64, seed=0):
    generator = source(seed)
    return Split(torch.rand(count, 1, 8, 8, generator=generator), torch.arange(count) % 3)


@pytest.fixture(scope="module")
def made():
    ledger = Ledger()
    method = PublishedNoiseLayerGan(epochs=1.5, batch_size=16, width=4, latent=8)
    return method.synthesize(images(), Order(3, 30, 3.45, 1e-5, seed=0), Context(ledger)), ledger


@pytest.mark.parametrize(("size", "convolutions"), [((28, 28), 4), ((32, 32), 5), ((8, 8), 4)])
def test_the_networks_have_the_layers_of_the_source(size, convolutions):
    judge = discriminator(NoiseLayer(1.0, 1.0, source()), channels=1, size=size, width=4, convolutions=convolutions)
    maker = Generator(size=size, width=4, latent=8)
    kinds = [type(layer) for layer in judge.modules()]
    assert kinds.count(nn.Conv2d) == convolutions
    third = [i for i, kind in enumerate(kinds) if kind is nn.Conv2d][2]
    assert third < kinds.index(NoiseLayer) < kinds.index(nn.BatchNorm2d)
    layers = [type(layer) for layer in maker.layers]
    assert layers.count(nn.Linear) == 2 and layers.count(nn.ConvTranspose2d) == 5
    assert layers[-2:] == [nn.FractionalMaxPool2d, nn.Tanh]
    labels = torch.tensor([0, 3])
    made = maker(torch.randn(2, 8), labels)
    assert made.shape == (2, 1, *size) and float(made.abs().max().detach()) <= 1
    assert judge(made, labels).shape == (2,)


def test_the_noise_layer_clips_and_has_the_noise_it_states():
    """False-alarm rate 1e-6: the variance of 40,000 normal numbers, and the norm of a clipped row."""
    quiet = NoiseLayer(2.0, 1e-9, source())(torch.full((3, 4, 5), 7.0))
    norms = quiet.flatten(1).norm(dim=1, dtype=torch.float64)
    assert bool((norms <= 2.0).all()) and bool((norms > 2.0 * (1 - 2e-5)).all())
    noisy = NoiseLayer(2.0, 1.5, source())(torch.zeros(40, 1000))
    assert abs(float(noisy.var()) / 9.0 - 1) * (40_000 / 2) ** 0.5 < 5


def test_the_claimed_epsilon_is_that_of_the_moments_accountant_and_says_that_it_is_claimed(made):
    synthetic, ledger = made
    spent = ledger.spent(1e-5, "moments")
    assert 3.4 < spent.epsilon <= 3.45
    assert spent.guarantee == CLAIM and len(ledger) == 2
    for text in (str(spent), str(ledger.spent(1e-5))):
        assert "only claimed by" in text and "whatever the noise" in text
    assert sum(count * event.count for event, count in ledger) == 6
    assert isinstance(ledger.guarantee, Claimed) and synthetic.accountant == "moments"
    assert synthetic.inputs.shape == (30, 1, 8, 8) and set(synthetic.labels.tolist()) == {0, 1, 2}
    assert float(synthetic.inputs.min()) >= 0 and float(synthetic.inputs.max()) <= 1


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        ([nn.Linear(4, 4), nn.Dropout(0.5), "noise"], "'1' \\(Dropout\\) is random"),
        ([nn.Linear(4, 4), "noise", nn.Dropout2d(0.5)], "'2' \\(Dropout2d\\) is random"),
        ([nn.Linear(4, 4), nn.BatchNorm1d(4), "noise"], "'1' \\(BatchNorm1d\\) comes before the noise layer"),
        ([nn.LSTM(4, 4), "noise"], "'0' \\(LSTM\\) is recurrent"),
        (["noise", nn.GRUCell(4, 4)], "'1' \\(GRUCell\\) is recurrent"),
        (["noise", "noise"], "second noise layer"),
        ([nn.Linear(4, 4)], "no noise layer"),
    ],
)
def test_what_the_source_s_theorem_excludes_is_refused_by_name(layers, words):
    noisy = [NoiseLayer(1.0, 1.0, source()) if layer == "noise" else layer for layer in layers]
    with pytest.raises(InputError, match=words):
        check_restrictions(nn.Sequential(*noisy))


def test_batch_norm_behind_the_noise_is_allowed():
    layer = NoiseLayer(1.0, 1.0, source())
    assert check_restrictions(nn.Sequential(nn.Linear(4, 4), layer, nn.BatchNorm1d(4))) is layer


@pytest.mark.parametrize(("nominal", "delivered"), [(0.01, 0.0607), (0.1, 0.2140), (3.45, 1.48)])
def test_the_printed_sigma_delivers_another_epsilon_than_it_names(nominal, delivered):
    found = accountant_named("gdp").epsilon(Gaussian(printed_sigma(nominal, 1e-5)), 1e-5)
    assert found == pytest.approx(delivered, rel=3e-3)


@pytest.mark.parametrize("sigma", [0.1, 1.0, 100.0])
def test_the_gradient_in_front_of_the_noise_lies_in_the_span_of_the_batch_whatever_the_noise(sigma):
    """A network within the restrictions, five records of 40 numbers: the first layer's gradient excludes every other record."""
    torch.manual_seed(0)
    noise = NoiseLayer(1.0, sigma, source())
    judge = nn.Sequential(nn.Linear(40, 16), nn.LeakyReLU(0.2), noise, nn.Linear(16, 1), nn.Flatten(0)).double()
    assert check_restrictions(judge) is noise
    batch, others = torch.randn(5, 40).double(), torch.randn(5, 40).double()
    called_real(judge(batch)).backward()
    gradient = judge[0].weight.grad
    assert len(span(gradient)) <= 5
    assert float(outside(batch, gradient).max()) < 1e-12  # every row of it is a combination of the records
    assert float(outside(gradient, others).min()) > 0.5


@pytest.mark.parametrize("sigma", [0.5657, 50.0])
def test_so_does_the_gradient_of_the_published_discriminator(sigma):
    """Its first kernels see patches: those of a plain image span little, and the gradient says which image it was."""
    torch.manual_seed(0)
    judge = discriminator(NoiseLayer(1.0, sigma, source()), size=(8, 8), classes=3, width=4)
    plain, other, label = torch.full((1, 1, 8, 8), 0.7), torch.rand(1, 1, 8, 8), torch.tensor([1])
    patches = nn.functional.unfold(plain, 4, stride=2, padding=1)[0].T
    shares = []
    for image in (plain, other):
        judge.zero_grad()
        judge.eval()  # one record has no batch statistics
        called_real(judge(image, label)).backward()
        shares.append(float(outside(patches, judge.before[0].weight.grad[:, 0]).max()))
    assert shares[0] < 1e-5 < 1e-2 < shares[1]


def test_tables_are_refused_by_name():
    rows = Split(torch.rand(40, 5), torch.arange(40) % 2)
    with pytest.raises(InputError, match="moments or dpgan"):
        PublishedNoiseLayerGan().synthesize(rows, Order(2, 10, 3.0, 1e-5, seed=0), Context(Ledger()))
