"""Box, class and distribution loss of one branch or two."""

from typing import NamedTuple

import torch
import torch.nn.functional as F

from .assigner import assign
from .boxes import anchor_points, ciou, decode
from .head import BINS, STRIDES, flatten

GAINS = (7.5, 0.5, 1.5)
AUXILIARY = 0.25


class Branch(NamedTuple):
    """Flattened outputs of a branch."""

    box: torch.Tensor  # (B, A, 64)
    classes: torch.Tensor  # (B, A, nc)
    points: torch.Tensor  # (A, 2) cells
    strides: torch.Tensor  # (A, 1)


def branches(heads):
    """The maps of every branch, flattened. Statistics and losses are float32 at least."""
    out = []
    for maps in heads:
        box, classes = flatten(maps)
        exact = torch.promote_types(box.dtype, torch.float32)
        sizes = [m.shape[2:] for m, _ in maps]
        out.append(Branch(box, classes, *anchor_points(sizes, STRIDES, box.device, exact)))
    return out


def expectation(p):
    """Expected bin of probabilities (..., 16). A sum of products: a matrix product gains nothing at rows of 16."""
    return (p * torch.arange(BINS, device=p.device, dtype=p.dtype)).sum(-1)


@torch.no_grad()
def assign_branch(branch, boxes):
    """The branch's own assignment, from its own predictions."""
    distances = expectation(branch.box.to(branch.points.dtype).unflatten(-1, (4, BINS)).softmax(-1))
    predicted = decode(distances, branch.points) * branch.strides
    return assign(branch.classes, predicted, branch.points * branch.strides, boxes)


def branch_loss(branch, slots):
    """(box, class, distribution) loss of a branch with gains, (3,), for given positives."""
    exact = branch.points.dtype
    points, strides = branch.points[slots.anchor], branch.strides[slots.anchor]
    weight = slots.weight
    normaliser = weight.sum().clamp(min=1)

    # Boxes are compared in cells.
    logits = branch.box.gather(1, slots.anchor[..., None].expand(-1, -1, 4 * BINS)).to(exact)
    log_p = logits.unflatten(-1, (4, BINS)).log_softmax(-1)
    target = slots.box / strides
    box = ((1 - ciou(decode(expectation(log_p.exp()), points), target)) * weight).sum()

    # Cross entropy between the two bins around the target distance.
    ltrb = torch.cat((points - target[..., :2], target[..., 2:] - points), -1).clamp(0, BINS - 1 - 0.01)
    low = ltrb.floor()
    share = ltrb - low
    low = low.long()[..., None]
    near, far = log_p.gather(-1, low)[..., 0], log_p.gather(-1, low + 1)[..., 0]
    distribution = -((near * (1 - share) + far * share).mean(-1) * weight).sum()

    # Binary cross entropy is softplus(x) - target * x, and the target is 0 but for one class of each positive.
    at = slots.anchor * branch.classes.shape[2] + slots.label
    positive = branch.classes.flatten(1).gather(1, at).to(exact)
    classes = F.softplus(branch.classes.to(exact)).sum() - (positive * weight).sum()

    gains = torch.stack((box * GAINS[0], classes * GAINS[1], distribution * GAINS[2]))
    return gains / normaliser


def combine(losses, batch):
    """Total loss, times the batch size, and the reported items (3,): 0.25 of the auxiliary branch plus the main one."""
    items = losses[-1]
    for auxiliary in losses[:-1]:
        items = items + AUXILIARY * auxiliary
    return items.sum() * batch, items.detach()


def loss(heads, boxes=None, slots=None):
    """Total loss and items of training outputs. `slots` (one per branch) fixes the assignment, else `boxes` decide."""
    flat = branches(heads)
    if slots is None:
        slots = [assign_branch(branch, boxes) for branch in flat]
    return combine([branch_loss(b, s) for b, s in zip(flat, slots)], heads[0][0][0].shape[0])
