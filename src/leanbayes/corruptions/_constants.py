"""The published constants: one tuple per severity, 1 to 5, for every corruption type.

| type              | constants                                                                                     |
|-------------------|-----------------------------------------------------------------------------------------------|
| gaussian_noise    | standard deviation                                                                            |
| shot_noise        | photons at value 1                                                                            |
| impulse_noise     | share of values replaced                                                                      |
| defocus_blur      | radius of the disc, standard deviation of its anti-aliasing                                   |
| glass_blur        | standard deviation of the blur, reach of the shuffle, rounds of it                            |
| motion_blur       | radius, standard deviation                                                                    |
| zoom_blur         | number of zoom factors, step between them, starting at 1                                      |
| snow              | mean, standard deviation, zoom and threshold of the flakes; radius and standard deviation of  |
|                   | their motion; share of the image that is not whitened                                         |
| frost             | weight of the image, weight of the texture                                                    |
| fog               | thickness, decay of the fractal                                                               |
| brightness        | shift of the value in HSV                                                                     |
| contrast          | factor                                                                                        |
| elastic_transform | height, smoothness and size of the random shift of the corners, as shares of the image's side |
| pixelate          | share of the side that is left                                                                |
| jpeg_compression  | quality                                                                                       |
"""

from __future__ import annotations

Constants = tuple[float, ...]

# The longest side, in pixels, that still takes the constants of CIFAR-10-C.
SMALL_SIDE = 64

SMALL_IMAGES: dict[str, tuple[Constants, ...]] = {
    "gaussian_noise": ((0.04,), (0.06,), (0.08,), (0.09,), (0.10,)),
    "shot_noise": ((500,), (250,), (100,), (75,), (50,)),
    "impulse_noise": ((0.01,), (0.02,), (0.03,), (0.05,), (0.07,)),
    "defocus_blur": ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
    "glass_blur": ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
    "motion_blur": ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
    "zoom_blur": ((7, 0.01), (12, 0.01), (16, 0.01), (21, 0.01), (26, 0.01)),
    "snow": (
        (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    ),
    "frost": ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)),
    "fog": ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
    "brightness": ((0.05,), (0.1,), (0.15,), (0.2,), (0.3,)),
    "contrast": ((0.75,), (0.5,), (0.4,), (0.3,), (0.15,)),
    "elastic_transform": ((0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)),
    "pixelate": ((0.95,), (0.9,), (0.85,), (0.75,), (0.65,)),
    "jpeg_compression": ((80,), (65,), (58,), (50,), (40,)),
}

# ImageNet-C multiplies the shares of elastic_transform by 244 for images of 224 pixels.
_ELASTIC = ((2, 0.7, 0.1), (2, 0.08, 0.2), (0.05, 0.01, 0.02), (0.07, 0.01, 0.02), (0.12, 0.01, 0.02))

LARGE_IMAGES: dict[str, tuple[Constants, ...]] = {
    "gaussian_noise": ((0.08,), (0.12,), (0.18,), (0.26,), (0.38,)),
    "shot_noise": ((60,), (25,), (12,), (5,), (3,)),
    "impulse_noise": ((0.03,), (0.06,), (0.09,), (0.17,), (0.27,)),
    "defocus_blur": ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
    "glass_blur": ((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
    "motion_blur": ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
    "zoom_blur": ((12, 0.01), (16, 0.01), (11, 0.02), (13, 0.02), (11, 0.03)),
    "snow": (
        (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
        (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
        (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
        (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
        (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
    ),
    "frost": ((1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75)),
    "fog": ((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)),
    "brightness": ((0.1,), (0.2,), (0.3,), (0.4,), (0.5,)),
    "contrast": ((0.4,), (0.3,), (0.2,), (0.1,), (0.05,)),
    "elastic_transform": tuple(tuple(share * 244 / 224 for share in shares) for shares in _ELASTIC),
    "pixelate": ((0.6,), (0.5,), (0.4,), (0.3,), (0.25,)),
    "jpeg_compression": ((25,), (18,), (15,), (10,), (7,)),
}

#: The corruption types, in the published order.
NAMES: tuple[str, ...] = tuple(SMALL_IMAGES)


def is_small(height: int, width: int) -> bool:
    """Whether images of this size take the constants of CIFAR-10-C."""
    return max(height, width) <= SMALL_SIDE


def constants_for(name: str, severity: int, height: int, width: int) -> Constants:
    """The constants of one type at one severity for images of one size."""
    return (SMALL_IMAGES if is_small(height, width) else LARGE_IMAGES)[name][severity - 1]
