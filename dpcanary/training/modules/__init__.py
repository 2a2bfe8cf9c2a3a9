"""The module path: any `torch.nn.Module`, layer by layer."""
