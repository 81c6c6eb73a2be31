"""How the reference reads docstrings: an `Example:` is code, and roles of other tools are names."""

import re

import griffe


class Docstrings(griffe.Extension):
    """Rewrites docstrings before they are parsed."""

    def on_object(self, *, obj: griffe.Object, **kwargs) -> None:
        """Called for every module, class and function."""
        if obj.docstring is not None:
            text = re.sub(r"^( *)Example:$", r"\1Examples:", obj.docstring.value, flags=re.MULTILINE)
            obj.docstring.value = re.sub(r":(?:func|class|meth):`~?([^`]+)`", r"`\1`", text)
