"""The picture of the house in docs/architecture.md is true."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def pictured():
    """The modules that the tree of the picture names."""
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    tree = text[text.index("```\nsrc/leadline/") :].split("```")[1]
    names, folder = set(), ""
    for line in tree.splitlines():
        found = re.match(r"^( {2,4})(\w+/|\w+\.py)", line)
        if found is None:
            continue
        indent, name = len(found[1]), found[2]
        if indent == 2:
            folder = name if name.endswith("/") else ""
        names.add(folder + name if indent == 4 else name)
    return {name for name in names if name.endswith(".py")}


def test_every_module_is_in_the_picture_and_nothing_else():
    source = ROOT / "src" / "leadline"
    modules = {
        str(path.relative_to(source))
        for path in source.rglob("*.py")
        if path.name != "__init__.py" and path.parents[1].name != "papers"
    }
    assert pictured() - {"__init__.py"} == modules
