"""The noise-layer GAN as published: noise inside the discriminator, whose gradients are then taken to be private.

"Generating differentially private datasets using GANs". The output of the noise layer is private, but the gradients of the
layers before it are not (`privet.attacks.inversion`), so every epsilon of this method is `Claimed`. A version with a proof is
`privet.methods.frozen_noise_layer_gan`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from privet.data import Split
from privet.errors import InputError
from privet.methods.dpgan import balanced_labels, called_made, called_real, draw_labels, game_randomness, generate
from privet.methods.method import Context, Task, register
from privet.methods.recipe import kind_of
from privet.methods.synthetic import Order, Synthetic, SyntheticMethod
from privet.models.gans import Discriminator, Generator, discriminator
from privet.noise.gaussian import NoiseLayer
from privet.privacy import Budget, Claimed, Event, Gaussian, PoissonSampled, steps_of
from privet.randomness import Randomness
from privet.training import BudgetExhausted
from privet.training.blocks import Blocks, Box
from privet.training.checkpoint import Stateful
from privet.training.identity import data_fingerprint, plain

_BLOCKS, _FEWEST, _MOST = 20, 10, 200
"""Target number of saved blocks, and the least and the largest number of steps in a block."""
CLAIM = Claimed(
    "the noise-layer GAN's theorem 2",
    "the gradient of a layer in front of the noise contains that layer's inputs as they are, whatever the noise",
)


@register
@dataclass(frozen=True, kw_only=True)
class PublishedNoiseLayerGan(SyntheticMethod):
    """The paper's teacher, its training and its accounting.

    Formal guarantees: none; the ledger holds what the paper claims of each step, under `CLAIM`. Labels are public, as in the
    paper.

    Attributes:
        epochs: passes over the records in shuffled batches, which the paper accounts as Poisson samples.
        batch_size, learning_rate: those of the paper.
        bound: C, the norm to which the output of the third convolution is clipped.
        width, latent: maps of the first convolution, and coordinates of the generator's noise; the paper does not state them.
        convolutions: number of convolutions of the discriminator; in the paper four for MNIST and five for SVHN.
    """

    epochs: float = 3.0
    batch_size: int = 32
    learning_rate: float = 2e-4
    bound: float = 1.0
    width: int = 12
    latent: int = 64
    convolutions: int = 4

    limits: ClassVar[dict[str, str]] = SyntheticMethod.limits | {
        **dict.fromkeys(("batch_size", "width", "latent", "convolutions"), "[1, inf)"),
        "epochs": "(0, inf)",
        "bound": "(0, inf)",
    }
    noise_path = "embedding layer"
    source = "Triastcyn and Faltings 2018"
    noise_is = "an embedding in the discriminator"
    proof = "the published theorem: claimed, and refuted"

    key: str = "noise-layer-gan-published"
    title: str = "Noise-layer GAN as published (its privacy is claimed, not proved)"
    by_default: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.labels == "votes":
            raise InputError(f"The method {self.key} takes the labels as public, as its source does: leave out votes.")

    def why_not(self, task: Task) -> str:
        return super().why_not(task) or ("" if kind_of(task.dataset.shape) == "images" else "it is for images")

    def noise_multiplier(self, records: int, order: Order) -> float:
        """The smallest sigma / C within the budget by the moments accountant, as in the paper."""
        steps = steps_of(records, self.batch_size, self.epochs)
        rate = self.batch_size / records
        return Budget(order.epsilon, order.delta, accountant="moments").noise_multiplier(rate, steps)

    def step_event(self, records: int, noise_multiplier: float) -> Event:
        """One step of the discriminator, as the paper describes it."""
        return PoissonSampled(self.batch_size / records, Gaussian(noise_multiplier)).under(CLAIM)

    def synthesize(self, records: Split, order: Order, context: Context) -> Synthetic:
        records.require_records(self.title)
        channels, *size = _image_shape(records)
        number = order.number_of(records)
        if self.batch_size > number:
            raise InputError(f"A batch of {self.batch_size} needs as many records, and there are fewer.")
        randomness, sigma = Randomness.of(order.seed), self.noise_multiplier(number, order)
        shape: dict[str, Any] = {
            "channels": channels,
            "size": tuple(size),
            "classes": order.classes,
            "width": self.width,
        }
        with game_randomness(order.seed):
            layer = NoiseLayer(self.bound, sigma, randomness.noise)
            judge = discriminator(layer, convolutions=self.convolutions, **shape)
            maker = Generator(latent=self.latent, **shape)
            done = self.train(judge, maker, records, context, randomness, number)
            frequencies = torch.bincount(records.labels, minlength=order.classes).float()
            labels = balanced_labels(frequencies, order.size)
            inputs = generate(maker, labels, self.latent)
        settings = {
            "Noise": f"N(0, ({sigma:.4g} C)^2) on the third convolution's output, clipped to C = {self.bound:g}",
            "Training": f"{done:,} batches of {self.batch_size}, about {done * self.batch_size / number:.3g} epochs",
            "Learning rate": f"Adam, {self.learning_rate:g}",
            "Networks": f"DCGAN, {self.convolutions} convolutions of width {self.width} against five transposed ones",
        }
        return Synthetic(inputs, labels, None, context.ledger, settings, accountant="moments", place="embedding layer")

    def train(
        self,
        judge: Discriminator,
        maker: Generator,
        records: Split,
        context: Context,
        randomness: Randomness,
        number: int | None = None,
    ) -> int:
        """Train both networks in turn, one step each; returns the number of steps.

        The claimed events of a block of steps are recorded before it, and both networks are saved after it. `on_step` may end
        the training with `BudgetExhausted`.

        Args:
            judge, maker, records: the two networks and the records.
            context: where the events are recorded and the networks are saved.
            randomness: of the noise layer.
            number: the public number of records.
        """
        noise = check_restrictions(judge)
        learners = [
            torch.optim.Adam(each.parameters(), lr=self.learning_rate, betas=(0.5, 0.999)) for each in (judge, maker)
        ]
        number = number or len(records)
        event, steps = self.step_event(number, noise.noise_multiplier), steps_of(number, self.batch_size, self.epochs)
        frequencies = torch.bincount(records.labels, minlength=maker.classes).float()
        left = Box(torch.empty(0, dtype=torch.int64))
        """The records that are still to come in this epoch."""
        parts: dict[str, Stateful] = {"judge": judge, "maker": maker, "left": left}
        parts |= {f"learner {place}": each for place, each in enumerate(learners)}
        kept = Blocks(context.folder or context.ledger, parts, randomness, planned=event * steps)
        kept.begin({"settings": plain(self), "seed": randomness.seed, "data": data_fingerprint(records)})
        done, block = kept.step, max(_FEWEST, min(_MOST, steps // _BLOCKS))
        try:
            while done < steps:
                order = left.value if len(left.value) else torch.randperm(len(records))
                batches = order.split(self.batch_size)[: min(block, steps - done)]
                name, cost = f"steps {done + 1} to {done + len(batches)}", event * len(batches)
                if not kept.allows({name: cost}):
                    break
                kept.announce(name, cost)
                left.value = order[sum(map(len, batches)) :].clone()
                for indices in batches:
                    inputs, labels = records.batch(indices)
                    made_labels = draw_labels(frequencies, len(labels))
                    loss = _turn(judge, maker, learners, inputs * 2 - 1, labels, made_labels)
                    done += 1
                    if context.on_step is not None:
                        context.on_step({"what": "Training the GAN", "step": done, "steps": steps, "loss": loss})
                kept.conclude(name, cost)
                kept.save(done)
        except BudgetExhausted:
            if done == 0:
                raise
            kept.save(done, ended=True)  # the generator stays as it is now
        return done


def _turn(
    judge: nn.Module,
    maker: Generator,
    optimizers: list[torch.optim.Adam],
    inputs: Tensor,
    labels: Tensor,
    made_labels: Tensor,
) -> float:
    """One step of the discriminator and one of the generator; returns the loss of the discriminator."""
    made = maker(torch.randn(len(labels), maker.latent), made_labels)
    optimizers[0].zero_grad()
    loss = called_real(judge(inputs, labels)) + called_made(judge(made.detach(), made_labels))
    loss.backward()
    optimizers[0].step()
    optimizers[1].zero_grad()
    called_real(judge(made, made_labels)).backward()
    optimizers[1].step()
    return float(loss.detach())


_RANDOMIZED = (nn.modules.dropout._DropoutNd, nn.FractionalMaxPool2d, nn.FractionalMaxPool3d, nn.RReLU)
_RECURRENT = (nn.RNNBase, nn.RNNCellBase)
_MIXING = (nn.modules.batchnorm._BatchNorm,)


def check_restrictions(network: nn.Module) -> NoiseLayer:
    """The noise layer of a network that meets the restrictions of the paper's section 4.2; otherwise `InputError`.

    The network is feed-forward, has no other random layer, and mixes no records before the noise. A layer is before the noise if
    the network has registered it earlier.
    """
    found: NoiseLayer | None = None
    for name, layer in network.named_modules():
        said = f"'{name}' ({type(layer).__name__})"
        if isinstance(layer, _RANDOMIZED):
            raise InputError(
                f"{said} is random: the theorem asks for no randomness but the noise layer's. Take it out."
            )
        if isinstance(layer, _RECURRENT):
            raise InputError(f"{said} is recurrent: the theorem is for feed-forward networks. Take another layer.")
        if isinstance(layer, _MIXING) and found is None:
            raise InputError(
                f"{said} comes before the noise layer and mixes the records of a batch, so that one record changes "
                f"the activations of all. Put it behind the noise."
            )
        if isinstance(layer, NoiseLayer):
            if found is not None:
                raise InputError(f"{said} is a second noise layer: the source accounts for one.")
            found = layer
    if found is None:
        raise InputError("The network has no noise layer: put a NoiseLayer behind its third convolution.")
    return found


def printed_sigma(epsilon: float, delta: float, sensitivity: float = 1.0) -> float:
    """The sigma of the paper's section 4.1, C sqrt(2 ln(1.25 / delta) / epsilon), with epsilon under the root.

    The classic bound is C sqrt(2 ln(1.25 / delta)) / epsilon. With the printed sigma the true epsilon differs from the stated
    one: it is larger below 1 and smaller above 1.
    """
    return sensitivity * math.sqrt(2 * math.log(1.25 / delta) / epsilon)


def _image_shape(records: Split) -> tuple[int, ...]:
    shape = tuple(records[0][0].shape)
    if len(shape) != 3 or min(shape[1:]) < 8:
        raise InputError(
            f"The noise-layer GAN as published is for images of at least 8x8, and a record has the shape {shape}: "
            f"use the method moments or dpgan for other records."
        )
    return shape
