"""Data sets: public ones, one's own files, and generated ones of the same forms."""

from leanbayes.data import augment, generate
from leanbayes.data._batches import Batches
from leanbayes.data._dataset import Column, Dataset, Part, Schema
from leanbayes.data._files import data_root
from leanbayes.data._new import NewRows, read_new, read_rows
from leanbayes.data._normalise import Affine, Normalisation
from leanbayes.data._registry import load, names, register, register_family, register_file, register_folder
from leanbayes.data._table_errors import TableError
from leanbayes.data.cifar import read_cifar10, read_cifar100
from leanbayes.data.digits import read_digits
from leanbayes.data.download import fetch, obtain
from leanbayes.data.folder import ImageFiles, read_folder
from leanbayes.data.imdb import read_imdb
from leanbayes.data.mimic import Variable, read_mimic
from leanbayes.data.mnist import read_fashion_mnist, read_mnist
from leanbayes.data.npz import read_arrays
from leanbayes.data.table import read_table
from leanbayes.data.tiny_imagenet import read_tiny_imagenet_100
from leanbayes.data.uci import read_uci

__all__ = [
    "Affine",
    "Batches",
    "Column",
    "Dataset",
    "ImageFiles",
    "NewRows",
    "Normalisation",
    "Part",
    "Schema",
    "TableError",
    "Variable",
    "augment",
    "data_root",
    "fetch",
    "generate",
    "load",
    "names",
    "obtain",
    "read_arrays",
    "read_cifar10",
    "read_cifar100",
    "read_digits",
    "read_fashion_mnist",
    "read_folder",
    "read_imdb",
    "read_mimic",
    "read_mnist",
    "read_new",
    "read_rows",
    "read_table",
    "read_tiny_imagenet_100",
    "read_uci",
    "register",
    "register_family",
    "register_file",
    "register_folder",
]
