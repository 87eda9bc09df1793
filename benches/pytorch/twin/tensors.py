"""The safetensors format, read and written without its package."""

import json
import struct
from pathlib import Path

import numpy as np
import torch

KINDS = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip


def read(path):
    """All tensors of a file by name."""
    data = Path(path).read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    body = bytearray(data[8 + size :])
    out = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        start, end = entry["data_offsets"]
        kind = KINDS[entry["dtype"]]
        if start == end:
            out[name] = torch.empty(entry["shape"], dtype=kind)
            continue
        # Offsets need not be aligned for the type, so each tensor gets memory of its own.
        raw = torch.frombuffer(body, dtype=torch.uint8, count=end - start, offset=start).clone()
        out[name] = raw.view(kind).reshape(entry["shape"])
    return out


def write(path, tensors):
    """Writes named tensors in the order given."""
    names = {kind: name for name, kind in KINDS.items()}
    header, blobs, offset = {}, [], 0
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        blob = tensor.reshape(-1).view(torch.uint8).numpy().astype(np.uint8).tobytes() if tensor.numel() else b""
        ends = [offset, offset + len(blob)]
        header[name] = {"dtype": names[tensor.dtype], "shape": list(tensor.shape), "data_offsets": ends}
        offset = ends[1]
        blobs.append(blob)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.writelines(blobs)
