"""Models are found by name; a user's own only where the user names it, never because a file does."""

import pytest
import torch
from torch import nn

from privet import models
from privet.errors import InputError
from privet.models import MODELS, model_arguments, model_named, model_names, recorded_model, resnet

OWN = "from torch import nn\nprint('imported')\n\nclass Net(nn.Linear):\n    pass\n\nnet = Net(1, 1)\nnumber = 3\n"


@pytest.fixture
def own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    (tmp_path / "own_models.py").write_text(OWN, encoding="utf-8")
    yield "py:own_models:Net"
    __import__("sys").modules.pop("own_models", None)


def test_every_model_of_the_facade_has_its_name():
    builders = [name for name in models.__all__ if name in MODELS]
    assert len(builders) == 9
    assert set(model_names()) >= set(builders)
    assert all(model_named(name) is getattr(models, name) for name in builders)


def test_an_unknown_model_is_answered_with_the_known_ones():
    with pytest.raises(InputError, match="There is no model 'resnett': did you mean 'resnet'"):
        model_named("resnett")


def test_the_users_own_model_is_imported(own):
    assert isinstance(model_named(own)(2, 3), nn.Linear)
    for name in ("net", "number"):
        with pytest.raises(InputError, match="does not build models"):
            model_named(f"py:own_models:{name}")


def test_a_file_never_makes_privet_import_code(own, capsys):
    assert recorded_model("resnet") is resnet
    with pytest.raises(
        InputError, match="its code is not run because a file names it: if you trust it, name it yourself"
    ):
        recorded_model(own)
    with pytest.raises(InputError, match="There is no model 'os'"):
        recorded_model("os")
    assert "imported" not in capsys.readouterr().out
    assert recorded_model(own, own) is model_named(own)
    assert recorded_model("resnet", own) is model_named(own)


@pytest.mark.parametrize("function", [model_named, recorded_model])
def test_arguments_from_a_file_cannot_name_a_model(function):
    # Older code called models by the name and the arguments in a file: no function of the facade may then import anything.
    with pytest.raises(TypeError):
        function(name="py:os:system")


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("tanh_cnn", (1, 28, 28), {"channels": 1, "classes": 7}),
        ("softmax_regression", (1, 8, 8), {"features": 64, "classes": 7}),
        ("softmax_regression", (30,), {"features": 30, "classes": 7}),
        ("conv_student", (3, 32, 32), {"channels": 3, "height": 32, "width": 32, "classes": 7}),
        ("pca_mlp", (1, 28, 28), {"inputs": 784, "classes": 7}),
    ],
)
def test_arguments_follow_from_the_records(name, shape, expected):
    arguments = model_arguments(model_named(name), shape, 7)
    assert arguments == expected
    assert model_named(name)(**arguments)(torch.zeros(2, *shape)).shape == (2, 7)


def test_given_arguments_are_added_and_missing_ones_named():
    assert model_arguments(resnet, (3, 32, 32), 10, {"depth": 14}) == {"channels": 3, "classes": 10, "depth": 14}
    with pytest.raises(InputError, match="The model resnet has no argument 'dept': it has channels, classes, depth"):
        model_arguments(resnet, (3, 32, 32), 10, {"dept": 14})
    with pytest.raises(InputError, match="The model resnet is for images, and the records have the shape"):
        model_arguments(resnet, (30,), 10)
    with pytest.raises(InputError, match="needs the argument 'vocabulary'"):
        model_arguments(models.LSTMClassifier, (30,), 10)
    assert model_arguments(lambda: nn.Identity(), (30,), 10) == {}
