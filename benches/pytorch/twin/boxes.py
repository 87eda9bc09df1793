"""Anchor points, decoding and complete IoU."""

import math

import torch

EPS = 1e-7


def anchor_points(sizes, strides, device, dtype):
    """Cell centres in cells (A, 2) and strides (A, 1) of levels of the given heights and widths."""
    points, steps = [], []
    for (h, w), stride in zip(sizes, strides):
        y = torch.arange(h, device=device, dtype=dtype) + 0.5
        x = torch.arange(w, device=device, dtype=dtype) + 0.5
        grid = torch.stack((x.expand(h, w), y[:, None].expand(h, w)), -1)
        points.append(grid.reshape(-1, 2))
        steps.append(torch.full((h * w, 1), float(stride), device=device, dtype=dtype))
    return torch.cat(points), torch.cat(steps)


def decode(distances, points):
    """Distances left, top, right, bottom (..., A, 4) around points (..., A, 2) to corners (..., A, 4)."""
    return torch.cat((points - distances[..., :2], points + distances[..., 2:]), -1)


def ciou(a, b):
    """Complete IoU of corner boxes (..., 4), broadcast; (...).

    `EPS` is added to heights, union and diagonal, and the weight of the aspect term carries no gradient.
    """
    ax0, ay0, ax1, ay1 = a.unbind(-1)
    bx0, by0, bx1, by1 = b.unbind(-1)
    aw, ah, bw, bh = ax1 - ax0, ay1 - ay0 + EPS, bx1 - bx0, by1 - by0 + EPS
    inter = (torch.minimum(ax1, bx1) - torch.maximum(ax0, bx0)).clamp(min=0)
    inter = inter * (torch.minimum(ay1, by1) - torch.maximum(ay0, by0)).clamp(min=0)
    iou = inter / (aw * ah + bw * bh - inter + EPS)
    hull_w = torch.maximum(ax1, bx1) - torch.minimum(ax0, bx0)
    hull_h = torch.maximum(ay1, by1) - torch.minimum(ay0, by0)
    diagonal = hull_w.square() + hull_h.square() + EPS
    # Twice the centres: the sum of both edges, so each box does it once before the broadcast.
    apart = ((ax0 + ax1) - (bx0 + bx1)).square() + ((ay0 + ay1) - (by0 + by1)).square()
    aspect = (4 / math.pi**2) * (torch.atan(aw / ah) - torch.atan(bw / bh)).square()
    with torch.no_grad():
        weight = aspect / (aspect - iou + (1 + EPS))
    return iou - (apart / (4 * diagonal) + aspect * weight)
