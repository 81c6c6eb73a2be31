"""How the reference reads docstrings: an `Example:` and a formula are code, and roles of other tools are names."""

import re

import griffe


class Docstrings(griffe.Extension):
    """Rewrites docstrings before they are parsed."""

    def on_object(self, *, obj: griffe.Object, **kwargs) -> None:
        """Called for every module, class and function."""
        if obj.docstring is not None:
            text = re.sub(r"^( *)Example:$", r"\1Examples:", obj.docstring.value, flags=re.MULTILINE)
            text = re.sub(r"^( *)\.\. math:: (.*\n(?:\1 +\S.*\n)*)", _code, text + "\n", flags=re.MULTILINE)
            obj.docstring.value = re.sub(r":(?:func|class|meth|math):`~?([^`]+)`", r"`\1`", text.rstrip())


def _code(match: re.Match[str]) -> str:
    """A formula as a block of its LaTeX: pages load nothing that could set it."""
    indent, lines = match[1], match[2].split("\n")
    return "\n".join(indent + line.strip() for line in ["```latex", *lines[:-1], "```"]) + "\n"
