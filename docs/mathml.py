"""Formulas of the documentation as MathML, which browsers draw without scripts or a network."""

import html
import re
import unicodedata

from latex2mathml.converter import convert

FORMULA = re.compile(
    r'<(?P<tag>span|div) class="arithmatex">\\[(\[](?P<tex>.*?)\\[)\]]</(?P=tag)>', re.DOTALL
)
LETTER = re.compile(r'<mi mathvariant="(double-struck|script|bold)">(\w)</mi>')
HOLES = {("double-struck", "P"): "ℙ", ("double-struck", "R"): "ℝ", ("double-struck", "N"): "ℕ",
         ("script", "L"): "ℒ", ("script", "R"): "ℛ", ("script", "H"): "ℋ", ("script", "F"): "ℱ",
         ("script", "E"): "ℰ", ("script", "B"): "ℬ", ("script", "M"): "ℳ"}  # fmt: skip
"""The letters that Unicode had before it had alphabets for mathematics."""


def _letter(found: re.Match[str]) -> str:
    """A letter of another alphabet as its own character: browsers ignore `mathvariant`."""
    alphabet, letter = found.groups()
    kind = "CAPITAL" if letter.isupper() else "SMALL"
    character = HOLES.get((alphabet, letter)) or unicodedata.lookup(
        f"MATHEMATICAL {alphabet.upper()} {kind} {letter.upper()}"
    )
    return f'<mi mathvariant="normal">{character}</mi>'


def mathml(tex: str, *, block: bool) -> str:
    """One formula, with its LaTeX as the text to copy."""
    made = convert(tex, display="block" if block else "inline")
    made = LETTER.sub(_letter, made)
    made = made.replace('<menclose notation="box">', '<mrow class="boxed">')
    made = made.replace("</menclose>", "</mrow>")
    made = re.sub(r"<mo>(&#x000(?:2F|7C);)</mo>", r'<mo lspace="0" rspace="0">\1</mo>', made)
    return made.replace("<math ", f'<math alttext="{html.escape(tex)}" ', 1)


def on_page_content(content: str, **_: object) -> str:
    """Replace every formula of a page."""
    return FORMULA.sub(
        lambda found: mathml(html.unescape(found["tex"]), block=found["tag"] == "div"), content
    )
