"""YOLOv9 and GELAN in PyTorch, from the project's own description of the models: the baseline of the benches."""
