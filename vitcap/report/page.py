"""A report as one HTML file: nothing outside it is needed, and no script runs in it."""

from __future__ import annotations

import base64
import html
import io
import re

from PIL import Image

from vitcap.report.blocks import (
    Block,
    Charts,
    Details,
    Document,
    Example,
    Figures,
    Heading,
    Paragraph,
    Picture,
    Table,
)

STYLE = """
:root{color-scheme:light dark;--ink:#1c1e22;--dim:#5c626b;--page:#f6f7f9;--card:#fff;--rule:#dde1e6;--link:#2b6ea8;
--warn:#fff4dc;--warnrule:#e0a000}
@media (prefers-color-scheme:dark){:root{--ink:#e8eaed;--dim:#a3a9b3;--page:#121417;--card:#1b1e23;--rule:#343941;
--link:#7db4e6;--warn:#3a2f14;--warnrule:#c99a2e}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:16px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}
main{max-width:1080px;margin:0 auto;padding:28px 20px 60px}
h1{font-size:1.75rem;line-height:1.2;margin:0 0 4px;overflow-wrap:anywhere}
h2{font-size:1.25rem;margin:40px 0 12px;padding-bottom:6px;border-bottom:1px solid var(--rule)}
p{margin:8px 0;max-width:75ch;overflow-wrap:anywhere}
.sub{color:var(--dim);margin:0 0 20px}
.loud{background:var(--warn);border-left:4px solid var(--warnrule);padding:8px 12px;border-radius:4px}
.figures{display:grid;grid-template-columns:repeat(auto-fill,minmax(150px,1fr));gap:12px;margin:16px 0}
.figures div,.card,.charts figure,.picture{background:var(--card);border:1px solid var(--rule);border-radius:8px}
.figures div{padding:12px 14px}
.figures dt{color:var(--dim);font-size:.85rem}
.figures dd{margin:0}
.figures b{display:block;font-size:1.7rem;line-height:1.25;font-variant-numeric:tabular-nums}
.figures small{color:var(--dim);font-size:.78rem;line-height:1.3;display:block}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,400px),1fr));gap:16px}
.charts figure{margin:0;padding:12px 14px}
.charts svg{display:block;width:100%;height:auto}
figcaption{font-size:.85rem;color:var(--dim)}
.charts figcaption{color:var(--ink);font-weight:600;font-size:.95rem;margin-bottom:6px}
.wide{overflow-x:auto}
table{border-collapse:collapse;font-size:.9rem;margin:8px 0}
th,td{padding:5px 16px 5px 0;text-align:left;vertical-align:top;border-bottom:1px solid var(--rule);
overflow-wrap:anywhere}
th{font-weight:600;color:var(--dim);min-width:9rem}
.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap;min-width:0}
.card{padding:16px;margin:16px 0;break-inside:avoid}
.top{display:grid;grid-template-columns:minmax(0,300px) minmax(0,1fr);gap:20px}
.even{grid-template-columns:minmax(0,1fr) minmax(0,1fr)}
.top img{max-width:100%;height:auto;border-radius:4px;display:block}
.said{font-size:1.15rem;font-weight:600;margin:0 0 4px}
.meta{color:var(--dim);font-size:.85rem;margin:0 0 10px}
.card h3{font-size:.85rem;color:var(--dim);font-weight:600;margin:0}
.card ul{margin:2px 0 0;padding-left:18px}
.tiles{display:grid;grid-template-columns:repeat(auto-fill,minmax(96px,1fr));gap:10px;margin-top:14px}
.tiles figure{margin:0;font-size:.8rem;line-height:1.3}
.tiles img{width:100%;height:auto;display:block;border-radius:3px;margin:2px 0}
.tiles b{overflow-wrap:anywhere}
.tiles+.meta{margin:12px 0 0}
.tiles span{color:var(--dim)}
.picture{padding:12px;margin:16px 0;background:#fff;width:fit-content;max-width:100%}
.picture img,.sheet{max-width:100%;height:auto;display:block}
.sheet{border-radius:4px}
pre{background:var(--card);border:1px solid var(--rule);border-radius:8px;padding:12px;overflow-x:auto;font-size:.8rem;
line-height:1.4}
summary{cursor:pointer;color:var(--link)}
@media (max-width:620px){.top,.even{grid-template-columns:1fr}main{padding:20px 14px 40px}th{min-width:6rem}
.figures{grid-template-columns:repeat(auto-fill,minmax(125px,1fr))}}
@media print{:root{color-scheme:light;--ink:#000;--dim:#444;--page:#fff;--card:#fff;--rule:#bbb;--warn:#fff}
body{font-size:11pt}h2{break-after:avoid}.charts figure,.figures div{break-inside:avoid}}
"""
_FEW = 3
"""So many tiles stand beside the photo, more below it."""


def page(document: Document) -> str:
    """The whole file. All texts are escaped, whatever they are."""
    body = "\n".join(map(_block, document.blocks))
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width,initial-scale=1">\n'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; '
        "style-src 'unsafe-inline'\">\n"
        f"<title>{text(document.title)}</title>\n<style>{STYLE}</style></head>\n<body><main>\n"
        f"<h1>{text(document.title)}</h1>\n<p class=sub>{text(document.subtitle)}</p>\n{body}\n</main></body></html>\n"
    )


def text(anything: str) -> str:
    """Text as HTML may hold it: escaped, without what no page can show."""
    found = anything.encode("utf-8", "replace").decode("utf-8")
    return html.escape(re.sub(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ufffe\uffff]", "\ufffd", found), quote=True)


def _block(block: Block) -> str:
    match block:
        case Heading():
            return f"<h2>{text(block.text)}</h2>"
        case Paragraph():
            return f"<p{' class=loud' if block.loud else ''}>{text(block.text)}</p>"
        case Figures():
            rows = (
                f"<div><dt>{text(name)}</dt><dd><b>{text(value)}</b><small>{text(note)}</small></dd></div>"
                for name, value, note in block.rows
            )
            return f"<dl class=figures>{''.join(rows)}</dl>"
        case Table():
            return _table(block)
        case Charts():
            each = (f"<figure><figcaption>{text(one.title)}</figcaption>{one.page}</figure>" for one in block.charts)
            return f"<div class=charts>{''.join(each)}</div>"
        case Picture():
            return f"<div class=picture>{_image(block.image, block.alt, exact=True)}</div>"
        case Example():
            return _example(block)
        case Details():
            return f"<details><summary>{text(block.summary)}</summary><pre>{text(block.text)}</pre></details>"


def _table(table: Table) -> str:
    def row(cells: tuple[str, ...], head: bool) -> str:
        made = []
        for index, cell in enumerate(cells):
            tag = "th" if head or (index == 0 and not table.head) else "td"
            scope = f' scope="{"col" if head else "row"}"' if tag == "th" else ""
            look = " class=n" if index in table.numbers else ""
            made.append(f'<{tag}{scope}{look} dir="auto">{text(cell)}</{tag}>')
        return f"<tr>{''.join(made)}</tr>"

    head = f"<thead>{row(table.head, True)}</thead>" if table.head else ""
    return f"<div class=wide><table>{head}<tbody>{''.join(row(r, False) for r in table.rows)}</tbody></table></div>"


def _example(example: Example) -> str:
    said = f'<p class=said dir="auto">{text(example.said) or "(no words)"}</p>'
    words = said + f"<p class=meta>{text(example.score)} &middot; {text(example.label)}</p>"
    if example.source is not None:
        words += f'<h3>source</h3><ul><li dir="auto">{text(example.source)}</li></ul>'
    if example.wanted:
        listed = "".join(f'<li dir="auto">{text(one)}</li>' for one in example.wanted)
        words += f"<h3>{text(example.wanted_label)}</h3><ul>{listed}</ul>"
    if example.problem:
        words += f"<p class=meta>{text(example.problem)}</p>"
    tiles = "".join(
        f'<figure><b dir="auto">{text(tile.word)}</b>{_image(tile.image, tile.alt)}'
        f"<span>{text(tile.note)}</span></figure>"
        for tile in example.tiles
    )
    below = f"<div class=tiles>{tiles}</div>" if tiles else ""
    below += f"<p class=meta>{text(example.note)}</p>" if example.note else ""
    if len(example.tiles) <= _FEW:  # there is room beside the photo
        words, below = words + below, ""
    if example.photo is not None:
        photo = _image(example.photo, f"the picture {example.label}")
        words = f"<div class=top><div>{photo}</div><div>{words}</div></div>"
    elif example.sheet is not None and not tiles:
        drawn = _image(example.sheet, example.sheet_alt, exact=True, look="sheet")
        words = f'<div class="top even"><div>{words}</div><div>{drawn}</div></div>'
    return f"<article class=card>{words}{below}</article>"


def _image(image: Image.Image, alt: str, *, exact: bool = False, look: str = "") -> str:
    kind, content = encode(image, exact=exact)
    data = base64.b64encode(content).decode("ascii")
    named = f' class="{look}"' if look else ""
    return (
        f'<img{named} src="data:image/{kind};base64,{data}" width="{image.width}" height="{image.height}" '
        f'alt="{text(alt)}">'
    )


def encode(image: Image.Image, *, exact: bool = False) -> tuple[str, bytes]:
    """(jpeg or png, bytes) of a picture. exact: drawings, of few colours."""
    kept = io.BytesIO()
    if exact:
        image.convert("RGB").quantize(128, dither=Image.Dither.NONE).save(kept, "PNG", optimize=True)
        return "png", kept.getvalue()
    image.convert("RGB").save(kept, "JPEG", quality=82)
    return "jpeg", kept.getvalue()
