"""A method of a plug-in is in train, compare (worker processes too), audit, report, methods and tab completion."""

import json
import os
import re
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from privet.attacks.target import REGISTRY as ATTACKS
from privet.cli import app
from privet.methods import METHODS
from privet.report import RunRecord
from privet.runs import race
from tests.runs.worker import quick

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "plugins" / "method.md").read_text(encoding="utf-8")
LINE, METHOD = re.findall(r"^```python\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)[:2]
KEYS = ("nearest-mean", "dpsgd-auto")
QUICK = ["--draws", "1000", "--canaries", "100"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty current folder; workers find the package as this process does, and their audits are quick."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PRIVET_DATA", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "argv", ["privet"])
    monkeypatch.setattr(sys, "path", [*sys.path])
    places = [str(tmp_path / "site"), str(ROOT / "src"), str(ROOT)]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(places))
    monkeypatch.setitem(race.race.__kwdefaults__, "one", quick)
    return tmp_path


def privet(*words: str, **more: str) -> str:
    result = CliRunner().invoke(app, list(words), env=more, prog_name="privet")
    assert result.exit_code == 0, result.output + repr(result.exception)
    return result.stdout


def completed(*words: str) -> list[str]:
    """What the tab key offers for the last word."""
    asked = {"_PRIVET_COMPLETE": "complete_bash", "COMP_WORDS": " ".join(["privet", *words])}
    return privet(**asked, COMP_CWORD=str(len(words))).split()


def check_everywhere(given: list[str]) -> None:
    """Both methods of the guide, through every verb that reads the table."""
    for verb in ("train", "compare", "audit"):
        assert set(KEYS) <= set(completed(verb, *given, "--method", "")), verb
    assert completed("methods", *given, "near") == ["nearest-mean"]
    assert set(KEYS) <= {method["key"] for method in json.loads(privet("methods", "--json", *given))}
    rows = json.loads(
        privet(
            *("compare", "--data", "digits", "--seed", "0", "--epsilon", "3", *given, "--json", "--out", "runs/c"),
            *("--methods", ",".join(KEYS), "--jobs", "2", "--set", "epochs=3"),
        )
    )["rows"]
    assert [(row["method"], row["state"]) for row in rows] == [(key, "done") for key in KEYS], rows
    assert all(row["audit"] is not None and not row["audit"]["refuted"] for row in rows)
    page = Path("runs/c/report.html").read_text(encoding="utf-8")
    assert "Nearest noisy mean" in page and "DP-SGD with automatic clipping" in page


def forget(keys: tuple[str, ...]) -> None:
    """As in a process that has not loaded the plug-in."""
    for key in keys:
        METHODS._values.pop(key), METHODS._given.pop(key)


@pytest.mark.slow
def test_a_method_of_a_file(folder):
    (folder / "mine.py").write_text(f"{LINE}\n{METHOD}", encoding="utf-8")
    given = ["--plugin", "mine.py"]
    check_everywhere(given)
    train = ["train", "--data", "digits", "--seed", "0", "--epsilon", "3", *given]
    found = json.loads(privet(*train, "--method", "nearest-mean", "--set", "clip=4", "--out", "runs/a", "--json"))
    assert found["method"] == "nearest-mean"
    assert found["test_accuracy"] > 0.8
    assert json.loads(privet("audit", "runs/a", *given, *QUICK, "--json"))
    # A report reads the record, and needs no plug-in; an audit says which method it lacks.
    forget(KEYS)
    assert "epsilon = 3" in privet("report", "runs/a")
    assert "Nearest noisy mean" in privet("report", "runs/c")
    result = CliRunner().invoke(app, ["audit", "runs/a"])
    assert result.exit_code == 2
    assert "'nearest-mean', which this version of Privet does not have: load its plug-in" in result.output


@pytest.mark.slow
def test_a_method_of_an_installed_package(folder, monkeypatch):
    """A dist-info folder with entry points is what pip leaves of a package."""
    site = folder / "site"
    (site / "methods_of_others").mkdir(parents=True)
    (site / "methods_of_others" / "__init__.py").touch()
    (site / "methods_of_others" / "auto.py").write_text(LINE, encoding="utf-8")
    (site / "methods_of_others" / "nearest.py").write_text(METHOD, encoding="utf-8")
    info = site / "methods_of_others-0.3.dist-info"
    info.mkdir()
    about = "Metadata-Version: 2.1\nName: methods-of-others\nVersion: 0.3\n"
    (info / "METADATA").write_text(about, encoding="utf-8")
    points = "nearest-mean = methods_of_others.nearest:NearestMean\ndpsgd-auto = methods_of_others.auto\n"
    (info / "entry_points.txt").write_text(f"[privet.methods]\n{points}", encoding="utf-8")
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setattr(METHODS, "_loaded", False)
    check_everywhere([])
    for name in [name for name in sys.modules if name.startswith("methods_of_others")]:
        del sys.modules[name]


def test_the_one_line_is_audited_with_its_own_clipping(folder):
    (folder / "auto.py").write_text(LINE, encoding="utf-8")
    assert len([line for line in LINE.splitlines() if "register(" in line]) == 1
    given = ["--plugin", "auto.py"]
    privet("train", "--data", "digits", "--seed", "0", *given, "--method", "dpsgd-auto", "--out", "runs/a", "--json")
    record = json.loads((folder / "runs/a/record.json").read_text(encoding="utf-8"))
    assert record["how"]["plan"]["clipping"]["kind"] == "privet.clipping:AutomaticClipping"
    audits = json.loads(privet("audit", "runs/a", *given, *QUICK, "--json"))
    assert any("clipping and noise, and its model" in audit["audited"] for audit in audits)
    assert {audit["refuted"] for audit in audits} == {False}


@pytest.mark.slow
def test_an_audit_says_what_its_run_assumes(folder):
    """Of a method that is not Privet's own: without a plan, by a plan, and without a run."""
    (folder / "nearest.py").write_text(METHOD, encoding="utf-8")
    planned = (
        "from privet.methods.dpsgd import DPSGD\n@register\n@dataclass(frozen=True, kw_only=True)\nclass Mine(DPSGD):\n"
    )
    planned += "    key: str = 'mine'\n"
    (folder / "mine.py").write_text(f"{METHOD.partition('@register')[0]}{planned}", encoding="utf-8")
    given = ["--plugin", "nearest.py", "--plugin", "mine.py"]
    for key, settings in (("nearest-mean", []), ("mine", ["--set", "epochs=1"])):
        words = [
            "--data",
            "digits",
            "--seed",
            "0",
            *given,
            "--method",
            key,
            *settings,
            "--out",
            f"runs/{key}",
            "--json",
        ]
        assumed = f"assuming the method {key}, which is not part of Privet, does to the records what it states"
        assert assumed.removeprefix("assuming ") in privet("train", *words)
        for one in json.loads(privet("audit", f"runs/{key}", *given, *QUICK, "--json")):
            assert assumed in one["claim"] and "proved" not in one["claim"], one
    for one in json.loads(privet("audit", "--method", "mine", *given, "--draws", "200", "--json")):
        assert assumed in one["claim"] and "proved" not in one["claim"], one
    forget(("nearest-mean", "mine"))


BROKEN = '''
from dataclasses import dataclass, replace

import torch

from privet.clipping import FlatClipping
from privet.methods import register
from privet.methods.dpsgd import DPSGD


@dataclass(frozen=True)
class Nothing(FlatClipping):
    """States a norm, and clips nothing."""

    def clip(self, gradients, state=None):
        tensors = gradients.weighted_sum(torch.ones(gradients.records, dtype=torch.float64))
        return replace(super().clip(gradients), tensors=tensors)


register(replace(DPSGD(), key="dpsgd-nothing", title="DP-SGD that clips nothing", clipping=Nothing))
'''


def test_a_broken_clipping_of_a_plug_in_is_refuted(folder):
    """The run of version 0.1 that was audited as consistent: its own clipping is audited now, in compare too."""
    (folder / "broken.py").write_text(BROKEN, encoding="utf-8")
    out = privet(
        *("compare", "--plugin", "broken.py", "--data", "digits", "--seed", "0", "--epsilon", "3", "--json"),
        *("--methods", "dpsgd,dpsgd-nothing", "--jobs", "2", "--set", "epochs=3", "--out", "runs/c"),
    )
    sound, broken = json.loads(out)["rows"]
    assert broken["state"] == "done", broken
    assert not sound["audit"]["refuted"]
    step = RunRecord.read(folder / "runs" / "c" / "dpsgd-nothing").audits[0]
    assert step.refuted and "clipping" in step.audited
    assert step.lower_bound > 2 * step.claimed_epsilon


@pytest.mark.parametrize("form", ["py", "registered"])
def test_a_model_and_a_reader_of_the_users_own(folder, form):
    (folder / "my_models").mkdir()
    (folder / "my_models" / "__init__.py").touch()
    (folder / "my_models" / "module.py").write_text(
        "from torch import nn\n"
        "from privet.data import DATA, Dataset, load as load_data\n"
        "from privet.models import MODELS\n"
        "@MODELS.register('mine')\n"
        "class Net(nn.Module):\n"
        "    def __init__(self, inputs: int, classes: int):\n"
        "        super().__init__()\n"
        "        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(inputs, 16), nn.Tanh(), nn.Linear(16, classes))\n"
        "    def forward(self, x):\n"
        "        return self.layers(x)\n"
        "@DATA.register('my-digits')\n"
        "def load():\n"
        "    digits = load_data('digits')\n"
        "    return Dataset('my digits', digits.classes, dict(digits.splits))\n",
        encoding="utf-8",
    )
    own = {"py": ["--data", "py:my_models.module:load", "--model", "py:my_models.module:Net"]}
    own["registered"] = ["--plugin", "my_models/module.py", "--data", "my-digits", "--model", "mine"]
    told = json.loads(privet("train", *own[form], "--seed", "0", "--epsilon", "8", "--out", "runs/a", "--json"))
    assert told["data"] == "my digits"
    # Records of the user's own are protected: the exact accuracy is internal.
    assert told["internal"]["test_accuracy"] > 0.7
    again = own["py"][2:] if form == "py" else own["registered"][:2]
    audits = json.loads(privet("audit", "runs/a", *again, *QUICK, "--json"))
    assert any("its model with its weights" in audit["audited"] for audit in audits)
    again = own["py"] if form == "py" else own["registered"][:2]
    assert json.loads(privet("attack", "runs/a", *again, "--attack", "confidence", "--json"))["key"] == "confidence"


def guide(page: str, name: str) -> str:
    """The example of a guide that defines `name`."""
    text = (ROOT / "docs" / "plugins" / f"{page}.md").read_text(encoding="utf-8")
    (found,) = (b for b in re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL) if name in b)
    return found


@pytest.mark.slow
def test_an_attack_of_a_file(folder):
    """In train, in the workers of compare, on a finished run, and in the list."""
    (folder / "entropy.py").write_text(guide("attack", "Entropy"), encoding="utf-8")
    given = ["--plugin", "entropy.py"]
    assert "entropy" in completed("attack", *given, "--attack", "")
    assert "entropy" in privet("attacks", *given)
    records = ["--data", "digits", "--seed", "0", "--epsilon", "3", "--set", "epochs=2", *given, "--json"]
    train = json.loads(privet("train", *records, "--attacks", "loss,entropy", "--out", "runs/a"))
    assert [attack["key"] for attack in train["attacks"]] == ["loss", "entropy"]
    privet("compare", *records, "--methods", "dpsgd", "--attacks", "entropy", "--out", "runs/c")
    assert [attack.key for attack in RunRecord.read(folder / "runs/c/dpsgd").attacks] == ["entropy"]
    found = json.loads(privet("attack", "runs/a", *given, "--attack", "entropy", "--set", "records=100", "--json"))
    assert found["key"] == "entropy" and found["members"] == 100
    # A report reads the record: it needs no plug-in.
    ATTACKS._values.pop("entropy"), ATTACKS._given.pop("entropy")
    assert "Entropy of the answer" in privet("report", "runs/a") + (folder / "runs/a/report.html").read_text("utf-8")


def test_an_accountant_of_a_file(folder):
    (folder / "zcdp.py").write_text(guide("accountant", "ZCDP"), encoding="utf-8")
    given = ["--plugin", "zcdp.py"]
    assert "zcdp" in completed("account", *given, "--accountant", "")
    nearest = folder / "nearest.py"
    nearest.write_text(METHOD, encoding="utf-8")
    privet(*"train --data digits --seed 0 --plugin nearest.py --method nearest-mean --out runs/a --json".split())
    said = privet("account", "runs/a", *given, "--accountant", "zcdp")
    assert "zCDP" in said and "which is not part of Privet, is right" in said
