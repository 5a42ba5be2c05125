"""Losses."""

import torch
import torch.nn.functional as F
from harness import Case, Input, write

SCORES, CLASSES, WEIGHT = Input((4, 5)), Input((4,), 0, 5, torch.int64), Input((5,), 0.5, grad=False)
PIXELS, PIXEL_CLASSES = Input((2, 5, 3)), Input((2, 3), 0, 5, torch.int64)
X, TARGET = Input((3, 4)), Input((3, 4))
UNIT, UNIT_TARGET = Input((3, 4), 0.05, 0.95), Input((3, 4), 0.05, 0.95)
TRUTH = Input((3, 4), 0, 1, grad=False)
# These probabilities leave no doubt, right or wrong. PyTorch's gradient of the target ignores the limit of logarithms.
SURE, SURE_TARGET = Input((6,), given=[0, 1, 0, 1, 0, 1]), Input((6,), given=[0, 1, 1, 0, 0.25, 0.75], grad=False)
CONTIGUOUS = ("contiguous", "transposed", "sliced")


def entropy(**options):
    return lambda x, target, *weight: F.cross_entropy(x, target, *weight, **options)


CASES = [
    Case("cross_entropy", entropy(), [SCORES, CLASSES]),
    Case("cross_entropy_none", entropy(reduction="none"), [SCORES, CLASSES], [(0, 5), (0,)]),
    Case("cross_entropy_weight", entropy(), [SCORES, CLASSES, WEIGHT]),
    Case("cross_entropy_all", entropy(ignore_index=1, label_smoothing=0.2), [SCORES, CLASSES, WEIGHT]),
    Case("cross_entropy_smooth", entropy(label_smoothing=0.1, reduction="sum"), [SCORES, CLASSES]),
    Case("cross_entropy_pixels", entropy(ignore_index=2), [PIXELS, PIXEL_CLASSES]),
    Case("cross_entropy_one", entropy(), [Input((5,)), Input((), 0, 5, torch.int64)], variants=("contiguous",)),
    Case(
        "cross_entropy_probabilities",
        lambda x, t, w: F.cross_entropy(x, t.softmax(1), w, label_smoothing=0.1),
        [SCORES, Input((4, 5)), WEIGHT],
        variants=CONTIGUOUS,
    ),
    Case("nll_loss", lambda x, t, w: F.nll_loss(x, t, w, ignore_index=3), [SCORES, CLASSES, WEIGHT]),
    Case("nll_loss_pixels", lambda x, t: F.nll_loss(x, t, reduction="none"), [PIXELS, PIXEL_CLASSES], [(0, 5, 3), (0, 3)]),
    Case("nll_loss_one", F.nll_loss, [Input((5,)), Input((), 0, 5, torch.int64)], variants=("contiguous",)),
    Case("mse_loss", F.mse_loss, [X, TARGET], None, [(), ()]),
    Case("mse_loss_none", lambda x, t: F.mse_loss(x, t, reduction="none"), [X, TARGET], [(0, 4), (0, 4)], [(), ()]),
    Case("l1_loss", F.l1_loss, [X, TARGET], [(0, 4)] * 2, [(), ()]),
    Case("smooth_l1_loss", lambda x, t: F.smooth_l1_loss(x, t, beta=0.7), [X, TARGET], [(0, 4)] * 2, [(), ()]),
    Case("huber_loss", lambda x, t: F.huber_loss(x, t, delta=0.7, reduction="sum"), [X, TARGET], [(0, 4)] * 2, [(), ()]),
    Case("binary_cross_entropy", F.binary_cross_entropy, [UNIT, UNIT_TARGET]),
    Case("binary_cross_entropy_sum", lambda x, t: F.binary_cross_entropy(x, t, reduction="sum"), [UNIT, TRUTH], [(0, 4)] * 2, [(), ()]),
    # PyTorch's gradient has a constant of float32.
    Case(
        "binary_cross_entropy_sure",
        lambda x, t: F.binary_cross_entropy(x, t, reduction="none"),
        [SURE, SURE_TARGET],
        variants=("contiguous",),
        dtypes=("f32", "bf16", "f16"),
        gradcheck=False,
    ),
    Case("bce_with_logits", F.binary_cross_entropy_with_logits, [X, UNIT_TARGET], [(0, 4)] * 2, [(), ()]),
    Case(
        "bce_with_logits_weights",
        lambda x, t, w, p: F.binary_cross_entropy_with_logits(x, t, w, pos_weight=p),
        [X, UNIT_TARGET, Input((4,), 0.5, grad=False), Input((4,), 0.5, grad=False)],
    ),
    Case("kl_div", lambda x, t: F.kl_div(x, t, reduction="sum"), [X, UNIT], [(0, 4)] * 2, [(), ()]),
    Case("kl_div_log", lambda x, t: F.kl_div(x, t, reduction="mean", log_target=True), [X, TARGET]),
]

write(__file__, CASES)
