"""Turn TeX into MathML when the site is built, so that browsers show formulas without a script or a network."""

import html
import re

from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError

FORMULA = re.compile(
    r'<span class="arithmatex">\\\((?P<inline>.*?)\\\)</span>'
    r'|<div class="arithmatex">\s*\\\[(?P<display>.*?)\\\]\s*</div>',
    flags=re.DOTALL,
)
FUNCTION = re.compile(r'<mi>(log|exp|sin|cos|det)</mi>(?P<bracket><mo stretchy="false">&#x00028;)?')
TILDE, RELATION = "<mi>&#x0007E;</mi>", "<mo>&#x0223C;</mo>"  # \sim, with the spaces of a relation
PRIMED = re.compile(r"<msup>(<mi>\w</mi>)<mi>&#x02032;</mi></msup>")
PRIMED_WITH_INDEX = re.compile(r"<msubsup>(<mi>\w</mi>)(<mi>\w</mi>)<mi>&#x02032;</mi></msubsup>")
PRIME = '<mo lspace="0" rspace="0">&#x02032;</mo>'  # not as an exponent: the glyph is raised already


def on_page_content(content: str, page, **_) -> str:
    """The page with a `<math>` element for every formula that `pymdownx.arithmatex` marked, docstrings included."""

    def mathml(formula: re.Match[str]) -> str:
        display = formula["display"] is not None
        tex = html.unescape(formula["display"] if display else formula["inline"]).strip()
        try:
            found = convert(tex, display="block" if display else "inline")
        except Exception as error:
            raise PluginError(f"{page.file.src_path}: the formula {tex!r} cannot be read ({error!r})") from error
        found = FUNCTION.sub(_function, found).replace(TILDE, RELATION)
        found = PRIMED.sub(rf"<mrow>\1{PRIME}</mrow>", found)
        return PRIMED_WITH_INDEX.sub(rf"<msub><mrow>\1{PRIME}</mrow>\2</msub>", found)

    return FORMULA.sub(mathml, content)


def _function(name: re.Match[str]) -> str:
    """The name of a function as an operator, with TeX's thin spaces around it."""
    after = "0" if name["bracket"] else "0.17em"
    return f'<mo lspace="0.17em" rspace="{after}">{name[1]}</mo>{name["bracket"] or ""}'
