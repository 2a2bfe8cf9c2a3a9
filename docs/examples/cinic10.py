"""Makes cinic10.npz from the archive of CINIC-10, without the images of CIFAR-10.

Run it in the folder that has CINIC-10: `python docs/examples/cinic10.py`.
"""

from pathlib import Path

import numpy as np
from PIL import Image

paths = [
    p for p in sorted(Path("CINIC-10/train").glob("*/*.png")) if not p.name.startswith("cifar10-")
]
classes = sorted({path.parent.name for path in paths})  # the order of CIFAR-10's labels
images = np.stack([np.asarray(Image.open(path).convert("RGB")) for path in paths])
labels = np.array([classes.index(path.parent.name) for path in paths])
np.savez("cinic10.npz", features=images.transpose(0, 3, 1, 2), labels=labels)
