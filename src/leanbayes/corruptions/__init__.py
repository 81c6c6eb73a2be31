"""Common corruptions of images: the 15 types at 5 severities of CIFAR-10-C and ImageNet-C, for images of any size.

The types and their constants are those of Hendrycks and Dietterich, "Benchmarking neural network robustness to common
corruptions and perturbations" (2019): `SMALL_IMAGES` for images whose sides are at most 64 pixels, `LARGE_IMAGES` for
the others. Everything is computed in floating point on the device where the images lie.

What differs from the published files, and matters when figures are compared:

- Frost textures are generated; the published ones are crops of photographs.
- Images are not rounded to 8 bits in between or at the end (inside `jpeg_compression` they are, as there), and are not
  stored as JPEG files, which ImageNet-C does at quality 85 after every corruption.
- The random draws are others.

A published severity is not always farther from the clean image than the one before: `elastic_transform` moves the
whole image less and its parts more, the blur in `glass_blur` takes back some of what its shuffle does, and `frost` and
`fog` darken the image that they cover.

Constants in pixels (radii, reaches, standard deviations of blurs) are not scaled with the image: on images much smaller
than 32 or 224 pixels a severity weighs more than its number says.
"""

from leanbayes.corruptions import blur as _blur  # noqa: F401
from leanbayes.corruptions import digital as _digital  # noqa: F401
from leanbayes.corruptions import noise as _noise  # noqa: F401
from leanbayes.corruptions import weather as _weather  # noqa: F401
from leanbayes.corruptions._apply import corrupt, iter_corruptions
from leanbayes.corruptions._constants import LARGE_IMAGES, NAMES, SMALL_IMAGES

__all__ = ["LARGE_IMAGES", "NAMES", "SMALL_IMAGES", "corrupt", "iter_corruptions"]
