"""The recorder: sees every torch operation from the batch to its loss.

`knowledge` says what is known of a tensor, `marking` what an operation makes of it, and `mode` intercepts the operations.
"""

from privet.gradients.recorder.knowledge import UnsupportedModelError
from privet.gradients.recorder.mode import NOT_PUBLIC, Recorder

__all__ = ["NOT_PUBLIC", "Recorder", "UnsupportedModelError"]
