"""Features in the cache: computed once, whole, and never mistaken for others."""

import io

import numpy as np
import pytest
import torch

from privet.data import Dataset, Split, compute_features
from privet.errors import InputError, PrivetWarning


def dataset(seed=0, name="toy"):
    generator = torch.Generator().manual_seed(seed)
    splits = {
        title: Split(torch.randint(0, 256, (count, 6, 6), generator=generator).to(torch.uint8), torch.arange(count) % 3)
        for title, count in (("train", 300), ("test", 20))
    }
    return Dataset(name, ("a", "b", "c"), splits)


class Halved:
    def __init__(self):
        self.seen = 0

    def __call__(self, images):
        self.seen += len(images)
        return images.flatten(1) / 2


def test_they_are_computed_once_and_then_read(tmp_path):
    data, transform, shown = dataset(), Halved(), []
    made = compute_features(data, transform, "halved", cache=tmp_path, progress=lambda *told: shown.append(told))
    assert torch.equal(made.train.inputs, data.train.tensors[0].flatten(1) / 2)
    assert torch.equal(made.test.labels, data.test.labels)
    assert shown[-1] == ("Features", 100, 100)
    seen = transform.seen
    again = compute_features(data, transform, "halved", cache=tmp_path)
    assert transform.seen == seen
    assert torch.equal(again.test.inputs, made.test.inputs)


def test_other_records_another_name_or_precision_are_computed_anew(tmp_path):
    compute_features(dataset(), Halved(), "halved", cache=tmp_path)
    other = dataset(seed=1)
    assert torch.equal(
        compute_features(other, Halved(), "halved", cache=tmp_path).test.inputs,
        other.test.tensors[0].flatten(1) / 2,
    )
    thirds = compute_features(dataset(), lambda x: x.flatten(1) / 3, "thirds", cache=tmp_path)
    assert torch.allclose(thirds.train.inputs, dataset().train.tensors[0].flatten(1) / 3)
    small = compute_features(dataset(), Halved(), "halved", cache=tmp_path, precision=torch.float16)
    assert small.train.inputs.dtype == torch.float16
    assert small.train.batch([0])[0].dtype == torch.float32


def test_what_is_done_to_them_does_not_reach_the_file(tmp_path):
    made = compute_features(dataset(), Halved(), "halved", cache=tmp_path)
    made.train.inputs.zero_()
    assert compute_features(dataset(), Halved(), "halved", cache=tmp_path).train.inputs.any()


def test_an_interrupted_computation_leaves_nothing_that_could_be_taken_for_whole(tmp_path):
    class Interrupted(Halved):
        def __call__(self, images):
            if self.seen > 100:
                raise KeyboardInterrupt
            return super().__call__(images)

    with pytest.raises(KeyboardInterrupt):
        compute_features(dataset(), Interrupted(), "halved", cache=tmp_path)
    assert not list(tmp_path.rglob("*.npy"))
    assert compute_features(dataset(), Halved(), "halved", cache=tmp_path).train.inputs.shape == (300, 36)


def test_a_file_that_changed_is_computed_again(tmp_path):
    """Version 0.1 used whatever lay there."""
    data = dataset()
    expected = data.train.tensors[0].flatten(1) / 2
    compute_features(data, Halved(), "halved", cache=tmp_path)
    (file,) = tmp_path.rglob("*-train.npy")
    whole = file.read_bytes()
    for damage in (whole[:-100], whole[:-4] + b"\x00\x00\x80\x3f", b"", np_file(torch.zeros(300, 36))):
        file.chmod(0o600)
        file.write_bytes(damage)
        transform = Halved()
        with pytest.warns(PrivetWarning, match=r"-train\.npy are damaged: they are computed again"):
            again = compute_features(data, transform, "halved", cache=tmp_path)
        assert torch.equal(again.train.inputs, expected)
        assert transform.seen == 301, "the other part was not damaged"
        assert torch.equal(compute_features(data, refuse, "halved", cache=tmp_path).train.inputs, expected)


def np_file(values):
    file = io.BytesIO()
    np.save(file, values.numpy())
    return file.getvalue()


def refuse(images):
    raise AssertionError("they were computed again")


def test_features_without_a_checksum_are_not_used(tmp_path):
    """Those that version 0.1 left, or a run that was killed between the two files."""
    data = dataset()
    compute_features(data, Halved(), "halved", cache=tmp_path)
    for file in tmp_path.rglob("*.sha256"):
        file.unlink()
    for file in tmp_path.rglob("*.npy"):
        file.write_bytes(np_file(torch.zeros(300, 36)))
    again = compute_features(data, Halved(), "halved", cache=tmp_path)
    assert torch.equal(again.train.inputs, data.train.tensors[0].flatten(1) / 2)


def test_only_their_owner_reads_them(tmp_path):
    compute_features(dataset(), Halved(), "halved", cache=tmp_path)
    files = [file for file in tmp_path.rglob("*") if file.suffix in (".npy", ".sha256")]
    assert len(files) == 4
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}


def test_long_and_odd_names_are_files_too(tmp_path):
    names = ["x" * 300, "a/b", "a:b", "a-b", "\x1b[31m", "ü" * 200]
    for name in names:
        compute_features(dataset(name=name), Halved(), "h" * 300, cache=tmp_path)
    assert len(list((tmp_path / "features").iterdir())) == len(names)


def test_a_path_as_the_name_of_the_data_stays_inside_the_cache(tmp_path):
    compute_features(dataset(name="csv:../../elsewhere"), Halved(), "halved", cache=tmp_path / "cache")
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]


@pytest.mark.parametrize(("name", "precision"), [("../x", torch.float32), ("x", torch.float64)])
def test_bad_names_and_types_are_refused(tmp_path, name, precision):
    with pytest.raises(InputError):
        compute_features(dataset(), Halved(), name, cache=tmp_path, precision=precision)
