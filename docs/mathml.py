"""Formulas of the documentation as MathML, which browsers draw without scripts or a network."""

import html
import re
import unicodedata

from latex2mathml.converter import convert

FORMULA = re.compile(
    r'<(?P<tag>span|div) class="arithmatex">\\[(\[](?P<tex>.*?)\\[)\]]</(?P=tag)>', re.DOTALL
)
LETTER = re.compile(r'<mi mathvariant="(double-struck|script|bold)">([A-Za-z])</mi>')


def _letter(found: re.Match[str]) -> str:
    """A letter of another alphabet as its own character: browsers ignore `mathvariant`."""
    alphabet, letter = found.groups()
    name = f"{alphabet} {'capital' if letter.isupper() else 'small'} {letter}".upper()
    try:
        character = unicodedata.lookup(f"MATHEMATICAL {name}")
    except KeyError:  # one of those that Unicode had before the alphabets
        character = unicodedata.lookup(name)
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
