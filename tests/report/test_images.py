import base64
import io

import numpy as np
import pytest
from PIL import Image

from leanbayes.report.images import data_uri


def decode(address):
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(address.partition(",")[2]))))


def test_grey_and_colour_images_come_back():
    rng = np.random.default_rng(0)
    grey, colour = rng.random((5, 7)), rng.random((5, 7, 3))
    np.testing.assert_array_equal(decode(data_uri(grey.tolist())), np.rint(grey * 255))
    np.testing.assert_array_equal(decode(data_uri(colour.tolist())), np.rint(colour * 255))
    np.testing.assert_array_equal(decode(data_uri(colour.transpose(2, 0, 1).tolist())), np.rint(colour * 255))


def test_values_out_of_range_are_clipped():
    assert decode(data_uri([[-1.0, 2.0, float("nan")]])).tolist() == [[0, 255, 0]]


@pytest.mark.parametrize("image", [None, [], [1, 2], "image", [[1], [1, 2]], [[[[0]]]], [["a"]]])
def test_what_is_no_image(image):
    assert data_uri(image) is None
