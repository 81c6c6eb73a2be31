"""What you need to write your own method: the base class, registration, JSON, and checks of arguments."""

from leanbayes._checks import check_choice, check_count, check_number, check_positive, is_number
from leanbayes._registry import from_json, register_posterior, register_prior, registered, to_json
from leanbayes.posteriors._method import Method, check_prior, fan_in

__all__ = [
    "Method",
    "check_choice",
    "check_count",
    "check_number",
    "check_positive",
    "check_prior",
    "fan_in",
    "from_json",
    "is_number",
    "register_posterior",
    "register_prior",
    "registered",
    "to_json",
]
