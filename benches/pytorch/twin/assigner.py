"""The task-aligned assigner, without loops over images and without waiting for the device.

An anchor is positive only if it is among the ten best of some box, so the result is a list of at most ten slots a box
and not a mask over all anchors; everything after the top-k works on slots.
"""

from typing import NamedTuple

import torch

from .boxes import ciou

TOPK = 10


class Slots(NamedTuple):
    """Positives of a batch, S a picture; a slot of weight 0 is empty."""

    anchor: torch.Tensor  # (B, S) index
    label: torch.Tensor  # (B, S) class
    box: torch.Tensor  # (B, S, 4) corners in px
    weight: torch.Tensor  # (B, S) target score


class Boxes(NamedTuple):
    """Ground truth, padded to M boxes a picture."""

    label: torch.Tensor  # (B, M) class
    box: torch.Tensor  # (B, M, 4) corners in px
    real: torch.Tensor  # (B, M) bool, False for padding


def quality(logits, predicted, boxes):
    """Metric score^0.5 * CIoU^6 and CIoU, both (B, M, A), of class logits (B, A, nc) and boxes (B, A, 4) in px."""
    index = boxes.label[:, None, :].expand(-1, logits.shape[1], -1)
    score = logits.gather(2, index).transpose(1, 2).to(predicted.dtype).contiguous().sigmoid_()
    overlap = ciou(boxes.box[:, :, None], predicted[:, None]).clamp_(min=0)
    cube = overlap * overlap * overlap
    return score.sqrt_().mul_(cube).mul_(cube), overlap


@torch.no_grad()
def assign(logits, predicted, points, boxes):
    """Slots for class logits (B, A, nc), predicted corners (B, A, 4) in px and cell centres (A, 2) in px."""
    batch, anchors = logits.shape[:2]
    most = boxes.label.shape[1]
    if most == 0:
        none = boxes.label.new_zeros((batch, 0))
        return Slots(none, none, boxes.box.new_zeros((batch, 0, 4)), predicted.new_zeros((batch, 0)))
    metric, overlap = quality(logits, predicted, boxes)

    # The centre must lie strictly inside the box.
    x, y = points[:, 0], points[:, 1]
    x0, y0, x1, y1 = boxes.box[..., None].unbind(2)
    inside = torch.minimum(torch.minimum(x - x0, y - y0), torch.minimum(x1 - x, y1 - y)) > 1e-9
    inside &= boxes.real[..., None]
    k = min(TOPK, anchors)
    best, anchor = (metric * inside).topk(k, dim=2)
    slots = most * k
    anchor, claimed = anchor.view(batch, slots), best.view(batch, slots) > 0

    # A contested anchor goes to the box with the highest overlap among all boxes of the picture, claiming or not.
    zeros = torch.zeros((batch, anchors), dtype=torch.int64, device=anchor.device)
    contested = zeros.scatter_add(1, anchor, claimed.long()).gather(1, anchor) > 1
    at_slot = anchor[:, None, :].expand(-1, most, -1)
    slot_overlap, slot_metric = overlap.gather(2, at_slot), metric.gather(2, at_slot)
    slot = torch.arange(slots, device=anchor.device)
    owner = torch.where(contested, slot_overlap.argmax(1), slot // k)

    # It is one positive, however many claimed it: the first slot stands for it.
    number = torch.where(claimed, slot, slots)
    first = (zeros + slots).scatter_reduce(1, anchor, number, "amin").gather(1, anchor)
    kept = claimed & (first == slot)

    # Scores are scaled so that the best anchor of a box gets that box's best overlap.
    metric = slot_metric.gather(1, owner[:, None])[:, 0] * kept
    overlap = slot_overlap.gather(1, owner[:, None])[:, 0] * kept
    nothing = metric.new_zeros((batch, most))
    top_metric = nothing.scatter_reduce(1, owner, metric, "amax").gather(1, owner)
    top_overlap = nothing.scatter_reduce(1, owner, overlap, "amax").gather(1, owner)
    weight = metric * (top_overlap / (top_metric + 1e-9))
    box = boxes.box.gather(1, owner[..., None].expand(-1, -1, 4))
    return Slots(anchor, boxes.label.gather(1, owner), box, weight)


def pad_boxes(rows, batch, width, height, dtype=torch.float32, most=None):
    """Rows (image, class, cx, cy, w, h; normalised) as padded `Boxes`. Host side, for fixtures."""
    counts = torch.bincount(rows[:, 0].long(), minlength=batch)
    most = max(int(counts.max()), 1) if most is None else most
    label = torch.zeros((batch, most), dtype=torch.int64)
    box = torch.zeros((batch, most, 4), dtype=dtype)
    real = torch.zeros((batch, most), dtype=torch.bool)
    scale = torch.tensor([width, height], dtype=dtype)
    for image in range(batch):
        own = rows[rows[:, 0] == image]
        n = len(own)
        centre, size = own[:, 2:4].to(dtype) * scale, own[:, 4:6].to(dtype) * scale
        label[image, :n], real[image, :n] = own[:, 1].long(), True
        box[image, :n] = torch.cat((centre - size / 2, centre + size / 2), 1)
    return Boxes(label, box, real)
