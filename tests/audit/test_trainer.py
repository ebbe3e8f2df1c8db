"""Audits of any trainer: canaries, one run and many."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import privet
from privet.audit import Canaries, Claim, OneRun, audit_guesses, mislabelled, out_of_distribution, trainer
from privet.errors import InputError, PrivetError
from privet.privacy import Ledger


def blobs(records: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(3, (records,), generator=generator)
    return torch.randn(records, 40, generator=generator) + 2 * torch.eye(40)[labels], labels


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(40, 64), nn.Tanh(), nn.Linear(64, 3))


def overfitted(records: tuple[torch.Tensor, torch.Tensor], _: torch.Generator) -> nn.Module:
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(records[0]), records[1]).backward()
        optimizer.step()
    return model


def private(records: tuple[torch.Tensor, torch.Tensor], generator: torch.Generator, ledger: Ledger) -> nn.Module:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    seed = int(torch.randint(2**31, (), generator=generator))
    settings = {"noise_multiplier": 2.0, "max_grad_norm": 1.0, "delta": 1e-5, "public_size": 400}
    run = privet.make_private(
        model, optimizer, TensorDataset(*records), batch_size=40, steps=20, ledger=ledger, seed=seed, **settings
    )
    for x, y in run.batches():
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model


def test_one_run_refutes_a_training_without_privacy():
    canaries = mislabelled(*blobs(300, seed=1), 300, 3, torch.Generator().manual_seed(2))
    found = trainer(overfitted, blobs(200), canaries, claimed=1.0, delta=1e-5)
    assert found.refuted, str(found)
    assert found.lower_bound <= found.ceiling
    assert "300 canaries" in found.evidence


def test_one_run_does_not_refute_dp_sgd():
    canaries = out_of_distribution((40,), 200, 3, torch.Generator().manual_seed(2))
    ledger = Ledger()
    dp = trainer(lambda r, g: private(r, g, ledger), blobs(200), canaries, claimed=1.0, delta=1e-5, name="DP-SGD")
    claim = Claim.of(ledger, 1e-5)  # known once the run has been
    assert dp.lower_bound <= min(claim.epsilon, 1.0)
    assert dp.name == "DP-SGD"


def test_many_runs_count_one_canary():
    def remembers(records, generator):
        noise = torch.rand((), generator=generator) < 0.1
        return set(records[0][:, 0].tolist()) if not noise else set()

    def score(trained, inputs, labels):
        return [float(value in trained) for value in inputs[:, 0].tolist()]

    canaries = Canaries(torch.full((1, 2), 7.0), torch.zeros(1, dtype=torch.int64), "a lucky number")
    data = torch.zeros(3, 2), torch.zeros(3, dtype=torch.int64)
    found = trainer(remembers, data, canaries, claimed=1.0, delta=1e-5, score=score, runs=400)
    assert found.method == "Clopper-Pearson"
    assert found.refuted


def test_guesses_are_the_highest_and_the_lowest():
    coins = np.arange(100) >= 50
    perfect = audit_guesses(np.arange(100.0), coins, claim=Claim.of(1.0, 0.0), bound=OneRun(0.0), name="", guesses=40)
    assert perfect.lower_bound == perfect.ceiling == OneRun(0.0).ceiling(40, 100)
    assert "40 guessed, 40 of them right" in perfect.evidence
    reversed_ = audit_guesses(-np.arange(100.0), coins, claim=Claim.of(1.0, 0.0), bound=OneRun(0.0), name="")
    assert reversed_.lower_bound == 0


def test_no_bound_from_scores_without_signal_beyond_the_stated_rate():
    # 1,000 audits with chosen numbers of guesses at 95 %: at most 5 %, and four standard errors of that.
    generator = np.random.default_rng(3)
    claim, bound = Claim.of(0.0, 1e-5), OneRun(1e-5, 0.95)
    above = sum(
        audit_guesses(
            generator.normal(size=120), generator.random(120) < 0.5, claim=claim, bound=bound, name="", seed=seed
        ).refuted
        for seed in range(1000)
    )
    assert above <= 50 + 4 * np.sqrt(1000 * 0.05 * 0.95)


def test_canaries_are_what_they_say():
    x, y = blobs(50)
    wrong = mislabelled(x, y, 20, 3, torch.Generator().manual_seed(0))
    known = {tuple(row.tolist()): int(label) for row, label in zip(x, y, strict=True)}
    assert all(known[tuple(row.tolist())] != int(label) for row, label in zip(wrong.inputs, wrong.labels, strict=True))
    assert set(wrong.labels.tolist()) <= {0, 1, 2}
    noise = out_of_distribution((2, 3), 5, 4, torch.Generator().manual_seed(0))
    assert noise.inputs.shape == (5, 2, 3)
    assert len(noise) == 5


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: Canaries(torch.zeros(2, 1), torch.zeros(3), ""), InputError, "no canaries"),
        (lambda: mislabelled(*blobs(5), 6, 3, torch.Generator()), InputError, "give more records"),
        (lambda: mislabelled(*blobs(5), 2, 1, torch.Generator()), InputError, "two classes"),
        (
            lambda: audit_guesses([1.0], [True], claim=Claim.of(1, 0), bound=OneRun(0.0), name=""),
            InputError,
            "at least 8",
        ),
        (
            lambda: audit_guesses([np.nan] * 9, [True] * 9, claim=Claim.of(1, 0), bound=OneRun(0.0), name=""),
            PrivetError,
            "not a number",
        ),
    ],
)
def test_what_cannot_be_guessed_is_named(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_a_score_of_the_wrong_shape_and_too_few_runs_are_named():
    canaries = out_of_distribution((40,), 10, 3, torch.Generator())
    with pytest.raises(InputError, match="one number for each of 10"):
        trainer(lambda r, g: None, blobs(5), canaries, claimed=1.0, delta=0.0, score=lambda *_: [1.0])
    with pytest.raises(InputError, match="too few"):
        trainer(lambda r, g: None, blobs(5), canaries, claimed=1.0, delta=0.0, runs=3)
