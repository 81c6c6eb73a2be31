"""Images of examples as PNG files inside the page."""

from __future__ import annotations

import base64
import struct
import zlib
from typing import Any

import numpy as np


def data_uri(image: Any) -> str | None:
    """The ``data:`` address of a grey or colour image with values from 0 to 1.

    Args:
        image: Nested lists ``[H, W]``, ``[H, W, 1 or 3]`` or ``[1 or 3, H, W]``.

    Returns:
        The address; None where this is no image.
    """
    pixels = _pixels(image)
    return None if pixels is None else "data:image/png;base64," + base64.b64encode(_png(pixels)).decode()


def _pixels(image: Any) -> np.ndarray | None:
    try:
        values = np.asarray(image, dtype=np.float64)
    except (TypeError, ValueError):
        return None
    if values.ndim == 2:
        values = values[..., None]
    if values.ndim == 3 and values.shape[-1] not in (1, 3) and values.shape[0] in (1, 3):
        values = values.transpose(1, 2, 0)
    if values.ndim != 3 or values.shape[-1] not in (1, 3) or not values.size:
        return None
    return np.rint(np.nan_to_num(values).clip(0, 1) * 255).astype(np.uint8)  # [H, W, 1 or 3]


def _png(pixels: np.ndarray) -> bytes:
    height, width, channels = pixels.shape
    rows = pixels.reshape(height, width * channels)
    # Each row starts with the number of its filter, here none.
    content = np.concatenate([np.zeros((height, 1), np.uint8), rows], axis=1).tobytes()
    header = struct.pack(">IIBBBBB", width, height, 8, 0 if channels == 1 else 2, 0, 0, 0)
    chunks = (b"IHDR", header), (b"IDAT", zlib.compress(content, 9)), (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name, body) for name, body in chunks)


def _chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
