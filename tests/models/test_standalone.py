"""A model as one file without Privet computes the same."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from privet.errors import InputError
from privet.models import MODELS
from privet.models.standalone import standalone

IMAGES = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
CASES: dict[str, tuple[dict[str, Any], torch.Tensor]] = {
    "LSTMClassifier": ({"vocabulary": 9, "classes": 3, "padding": 0}, torch.tensor([[1, 2, 0, 0], [3, 4, 8, 0]])),
    "LSTMLanguageModel": ({"vocabulary": 9}, torch.tensor([[1, 2, 5, 0]])),
    "conv_student": ({}, IMAGES[:, :1, :28, :28]),
    "crop_cnn": ({}, IMAGES),
    "pca_mlp": ({"inputs": 64, "hidden": 20}, IMAGES[:, :1, :8, :8]),
    "resnet": ({"members": 2, "groups": 4}, IMAGES),
    "scattering_linear": ({"channels": 3, "height": 32, "width": 32}, IMAGES),
    "softmax_regression": ({"features": 64}, IMAGES[:, :1, :8, :8]),
    "tanh_cnn": ({}, IMAGES[:, :1, :28, :28]),
}


def test_every_model_has_a_case() -> None:
    own = {name for name, builder in MODELS.items() if builder.__module__.startswith("privet.models.")}
    assert own == set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_the_file_computes_what_the_model_computes(name: str) -> None:
    arguments, x = CASES[name]
    torch.manual_seed(0)
    real = MODELS[name](**arguments).eval()
    code = standalone(MODELS[name])
    assert "from privet" not in code and "import privet" not in code
    scope: dict[str, Any] = {"__name__": "model"}
    exec(compile(code, "model.py", "exec"), scope)
    copy = scope[name](**arguments).eval()
    copy.load_state_dict(real.state_dict())
    assert not any(type(part).__module__.startswith("privet") for part in copy.modules())
    with torch.no_grad():
        assert torch.equal(copy(x), real(x))


def test_it_runs_where_privet_is_not_there(tmp_path: Path) -> None:
    arguments, x = CASES["scattering_linear"]
    real = MODELS["scattering_linear"](**arguments).eval()
    (tmp_path / "model.py").write_text(standalone(MODELS["scattering_linear"]))
    save_file(real.state_dict(), tmp_path / "weights")
    script = (
        "import sys; sys.modules['privet'] = None; sys.path.insert(0, '.')\n"
        "import safetensors.torch as st, torch\n"
        "from model import scattering_linear\n"
        f"model = scattering_linear(**{arguments!r}).eval(); model.load_state_dict(st.load_file('weights'))\n"
        "x = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))\n"
        "st.save_file({'answers': model(x).detach()}, 'answers')\n"
    )
    subprocess.run([sys.executable, "-I", "-c", script], cwd=tmp_path, check=True)
    with torch.no_grad():
        assert torch.equal(load_file(tmp_path / "answers")["answers"], real(x))


def test_models_of_others_are_not_copied() -> None:
    class Net(torch.nn.Module):
        pass

    for builder in (Net, torch.nn.Linear, lambda: Net()):
        with pytest.raises(InputError, match="not a model of Privet"):
            standalone(builder)
