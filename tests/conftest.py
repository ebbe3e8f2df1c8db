"""One thread for torch in every test: the tensors are small, and two test processes share two cores."""

import torch

torch.set_num_threads(1)
