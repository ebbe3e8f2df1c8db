"""Features in the cache: computed once, whole, and never mistaken for others."""

import pytest
import torch

from privet.data import Dataset, Split, compute_features
from privet.errors import InputError


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


def test_a_path_as_the_name_of_the_data_stays_inside_the_cache(tmp_path):
    compute_features(dataset(name="csv:../../elsewhere"), Halved(), "halved", cache=tmp_path / "cache")
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]


@pytest.mark.parametrize(("name", "precision"), [("../x", torch.float32), ("x", torch.float64)])
def test_bad_names_and_types_are_refused(tmp_path, name, precision):
    with pytest.raises(InputError):
        compute_features(dataset(), Halved(), name, cache=tmp_path, precision=precision)
