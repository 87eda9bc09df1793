"""Random images and boxes, made on the device in place, so that neither a step nor a captured one waits for them."""

import torch

from .assigner import Boxes

MEAN_BOXES, MOST_BOXES = 7.0, 24


class RandomBatch:
    """uint8 images in NHWC memory and padded boxes in px; `refill` draws new ones into the same tensors.

    The number of boxes a picture is Poisson with mean 7, cut at 24 (one picture in ten million has more).
    """

    def __init__(self, batch, size, nc, device, seed=0):
        self.size, self.nc = size, nc
        self.generator = torch.Generator(device).manual_seed(seed)
        shape = (batch, 3, size, size)
        self.images = torch.empty(shape, dtype=torch.uint8, device=device).to(memory_format=torch.channels_last)
        self.boxes = Boxes(
            torch.zeros((batch, MOST_BOXES), dtype=torch.int64, device=device),
            torch.zeros((batch, MOST_BOXES, 4), device=device),
            torch.zeros((batch, MOST_BOXES), dtype=torch.bool, device=device),
        )
        self.rate = torch.full((batch, 1), MEAN_BOXES, device=device)
        self.index = torch.arange(MOST_BOXES, device=device)
        self.refill()

    def refill(self):
        g, (label, box, real) = self.generator, self.boxes
        self.images.random_(0, 256, generator=g)
        real.copy_(self.index < torch.poisson(self.rate, generator=g))
        label.random_(0, self.nc, generator=g)
        # Sides are log-uniform between 1/50 and 3/4 of the picture, and a box lies inside the picture.
        unit = torch.rand(box.shape, generator=g, device=box.device)
        side = 0.02 * (0.75 / 0.02) ** unit[..., 2:]
        corner = unit[..., :2] * (1 - side)
        box.copy_(torch.cat((corner, corner + side), -1).mul_(self.size))
        box.mul_(real[..., None])
        label.mul_(real)
