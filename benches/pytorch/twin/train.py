"""A training step: forward, loss, backward, clipped update, moving average; nothing in it waits for the device."""

import math
from contextlib import nullcontext

import torch

from .loss import assign_branch, branch_loss, branches, combine, loss


def parameter_groups(model, weight_decay):
    """Biases, convolution weights (decayed) and norm weights, in the reference's order."""
    groups = ([], [], [])
    for module in model.modules():
        norm = isinstance(module, torch.nn.BatchNorm2d)
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.requires_grad:
                groups[0 if name == "bias" else 2 if norm else 1].append(parameter)
    decays = (0.0, weight_decay, 0.0)
    return [{"params": group, "weight_decay": decay} for group, decay in zip(groups, decays)]


class Average:
    """Exponential moving average of every float entry of the state dict, in one launch for all tensors."""

    def __init__(self, model):
        entries = model.state_dict()
        self.names = [name for name, tensor in entries.items() if tensor.is_floating_point()]
        self.sources = [entries[name] for name in self.names]
        self.values = [tensor.clone() for tensor in self.sources]
        self.updates = 0
        # For replayed steps, whose scalars would otherwise stay as captured.
        self.weight = torch.zeros((), device=self.values[0].device, dtype=self.values[0].dtype)

    def advance(self):
        """Counts an update and returns its weight for the new value."""
        self.updates += 1
        return 1 - 0.9999 * (1 - math.exp(-self.updates / 2000))

    @torch.no_grad()
    def update(self):
        torch._foreach_lerp_(self.values, self.sources, self.advance())

    @torch.no_grad()
    def update_by_tensor(self):
        """The same with the weight read from device memory."""
        change = torch._foreach_sub(self.sources, self.values)
        torch._foreach_mul_(change, self.weight)
        torch._foreach_add_(self.values, change)


class Trainer:
    """The step of a benchmark or a test.

    `precision` is bf16 (autocast), tf32 or fp32. `optimiser` defaults to fused SGD with Nesterov momentum.
    """

    def __init__(self, model, precision="fp32", lr=0.01, momentum=0.937, weight_decay=5e-4, clip=10.0, optimiser=None):
        self.model, self.clip = model.train(), clip
        self.device = next(model.parameters()).device
        self.autocast = precision == "bf16"
        set_tf32(precision == "tf32")
        groups = parameter_groups(model, weight_decay)
        sgd = dict(lr=lr, momentum=momentum, nesterov=True, fused=True)
        self.optimiser = optimiser(groups) if optimiser else torch.optim.SGD(groups, **sgd)
        self.parameters = [p for group in self.optimiser.param_groups for p in group["params"]]
        self.average = Average(model)
        self.counters = [m.num_batches_tracked for m in model.modules() if isinstance(m, torch.nn.BatchNorm2d)]
        self.network, self.loss = model, loss

    def compile(self, part, mode=None):
        """Compiles the whole model (`model`), each of its layers (`blocks`), or the loss (`loss`)."""
        for name in ("recompile_limit", "cache_size_limit"):
            if hasattr(torch._dynamo.config, name):
                setattr(torch._dynamo.config, name, 1024)
        options = {"dynamic": False, "mode": mode}
        if part == "model":
            self.network = torch.compile(self.model, **options)
        elif part == "blocks":
            for layer in self.model.model:
                layer.compile(**options)
        else:
            self.loss = torch.compile(loss, **options)

    def forward(self, images):
        """Training outputs of images, uint8 or float in 0 to 1."""
        kind = torch.bfloat16 if self.autocast else torch.float32
        if images.dtype == torch.uint8:
            images = images.to(kind).div_(255)
        cast = torch.autocast(self.device.type, dtype=torch.bfloat16) if self.autocast else nullcontext()
        with cast:
            return self.network(images)

    def update(self, replayed=False):
        """Clips the gradients, steps, averages. Returns the gradient norm before clipping, on the device."""
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, self.clip, foreach=True)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        torch._foreach_add_(self.counters, 1)
        self.average.update_by_tensor() if replayed else self.average.update()
        return norm

    def step(self, images, boxes=None, slots=None, replayed=False):
        """One step. Returns total loss, items (3,) and gradient norm, all on the device."""
        total, items = self.loss(self.forward(images), boxes, slots)
        total.backward()
        return total.detach(), items, self.update(replayed)

    def scoped_step(self, images, boxes, scope):
        """A step whose phases are named by the context manager `scope`; the same numbers as `step`.

        The backward pass is cut at the heads' outputs, so that the loss's part of it has a phase of its own.
        """
        with scope("forward"):
            heads = self.forward(images)
        leaves = [[[m.detach().requires_grad_() for m in level] for level in maps] for maps in heads]
        with scope("loss"):
            flat = branches(leaves)
        with scope("assigner"):
            slots = [assign_branch(branch, boxes) for branch in flat]
        with scope("loss"):
            total, items = combine([branch_loss(b, s) for b, s in zip(flat, slots)], images.shape[0])
        with scope("loss backward"):
            total.backward()
        outputs = [m for maps in heads for level in maps for m in level]
        gradients = [m.grad for maps in leaves for level in maps for m in level]
        with scope("backward"):
            torch.autograd.backward(outputs, gradients)
        with scope("clip"):
            norm = torch.nn.utils.clip_grad_norm_(self.parameters, self.clip, foreach=True)
        with scope("optimiser"):
            self.optimiser.step()
            self.optimiser.zero_grad(set_to_none=True)
        with scope("average"):
            torch._foreach_add_(self.counters, 1)
            self.average.update()
        return total.detach(), items, norm


class Replay:
    """A whole step captured as one CUDA graph: no launch gaps. Images and boxes are read from the given tensors."""

    def __init__(self, trainer, images, boxes, warmup=3):
        self.trainer = trainer
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(warmup):
                trainer.average.weight.fill_(trainer.average.advance())
                trainer.step(images, boxes, replayed=True)
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.results = trainer.step(images, boxes, replayed=True)

    def step(self):
        """Runs the captured step on what the tensors hold now."""
        self.trainer.average.weight.fill_(self.trainer.average.advance())
        self.graph.replay()
        return self.results


def set_tf32(on):
    """Whether float32 products on the GPU may round their inputs to TF32."""
    torch.backends.cuda.matmul.allow_tf32 = on
    torch.backends.cudnn.allow_tf32 = on
