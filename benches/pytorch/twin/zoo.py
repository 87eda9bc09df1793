"""Model files: from YAML rows to blocks with resolved arguments."""

import ast
import math
import re
from dataclasses import dataclass
from pathlib import Path

ZOO = Path(__file__).resolve().parents[3] / "crates" / "model" / "zoo"
MODELS = [f"{family}-{size}" for family in ("yolov9", "gelan") for size in "tsmce"]

# Rows whose first argument is a number of output channels.
CONV_LIKE = {"Conv", "RepNCSPELAN4", "ELAN1", "AConv", "ADown", "SPPELAN"}


@dataclass
class Row:
    """One layer: absolute input indices (-1 = image), block name, resolved arguments without input channels."""

    inputs: list
    block: str
    args: list
    repeats: int


def _word(match):
    return repr(match.group(0))


def _parse_rows(text):
    """The part of YAML that the zoo uses: `key: value` and `- [flow row]`. For machines without a YAML package."""
    found, section = {}, None
    for number, line in enumerate(text.splitlines(), 1):
        line = line.split("#")[0].rstrip()
        if not line:
            continue
        row = re.fullmatch(r"\s*-\s*(\[.*\])", line)
        pair = re.fullmatch(r"(\w+):\s*(\S*)", line)
        if row and section:
            found[section].append(ast.literal_eval(re.sub(r"[A-Za-z_][\w.]*", _word, row.group(1))))
        elif pair and pair.group(2):
            found[pair.group(1)] = float(pair.group(2)) if "." in pair.group(2) else int(pair.group(2))
        elif pair:
            section = pair.group(1)
            found[section] = []
        else:
            raise ValueError(f"line {number}: only rows in brackets are read without the yaml package: {line!r}")
    return found


def parse(text):
    """A model file as a dictionary."""
    try:
        import yaml
    except ImportError:
        return _parse_rows(text)
    return yaml.safe_load(text)


def path_of(model):
    """The file of a zoo model, or the path itself."""
    path = Path(model) if str(model).endswith((".yaml", ".yml")) else ZOO / f"{model}.yaml"
    if not path.is_file():
        raise SystemExit(f"error: no model file {path}; models are {', '.join(MODELS)}")
    return path


def rows(model, nc=None):
    """Rows of a model and its number of classes. Channels are scaled and rounded, `nc` is filled in."""
    file = parse(path_of(model).read_text(encoding="utf-8"))
    nc = file["nc"] if nc is None else nc
    depth, width = file.get("depth_multiple", 1.0), file.get("width_multiple", 1.0)
    # A width equal to the outputs of an anchor-based head stays as it is: a rule of the file format.
    unscaled = file.get("anchors", 3) * (nc + 5)
    out = []
    for index, (source, repeats, block, args) in enumerate(file["backbone"] + file["head"]):
        block = block.removeprefix("nn.")
        sources = source if isinstance(source, list) else [source]
        inputs = [index + i if i < 0 else i for i in sources]
        args = [nc if a == "nc" else a for a in args]
        if block in CONV_LIKE and args[0] != unscaled:
            args[0] = math.ceil(args[0] * width / 8) * 8
        out.append(Row(inputs, block, args, max(round(repeats * depth), 1) if repeats > 1 else repeats))
    return out, nc
