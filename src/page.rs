//! What pages of HTML have in common: their style, and tables. A page is complete in itself, and
//! has no scripts.

use maud::{DOCTYPE, Markup, PreEscaped, html};

/// Colours are variables: light, dark, and on paper those of light.
const STYLE: &str = ":root{color-scheme:light dark;--fg:#222;--bg:#fff;--soft:#555;--box:#f2f4f6;--line:#d8dce0;--axis:#444}\
@media screen and (prefers-color-scheme:dark){:root{--fg:#e4e6e8;--bg:#16191c;--soft:#a4abb2;--box:#22272c;--line:#3a4148;--axis:#9aa2aa}}\
body{font:14px/1.45 sans-serif;margin:2em auto;max-width:980px;padding:0 1em;color:var(--fg);background:var(--bg)}\
h1{font-size:22px;margin-bottom:0}h1,h2{overflow-wrap:anywhere}h2{font-size:17px;margin:1.8em 0 .5em;break-after:avoid}\
.sub{color:var(--soft);margin-top:.2em}pre{background:var(--box);padding:.6em;overflow-x:auto;font-size:12px}\
table{border-collapse:collapse;margin:.5em 0;display:block;overflow-x:auto}svg{max-width:100%;height:auto}\
th,td{padding:.25em .8em;text-align:right;border-bottom:1px solid var(--line)}th{font-weight:600;color:var(--soft)}\
td:first-child,th:first-child{text-align:left}td{white-space:nowrap}td svg{max-width:none}\
.big{display:flex;flex-wrap:wrap;gap:1em;margin:1em 0}.big div{background:var(--box);padding:.6em 1em;min-width:9em}\
.big b{display:block;font-size:20px}.advice li{margin:.35em 0}svg text{font:12px sans-serif;fill:var(--fg)}\
svg .t{font-weight:bold;font-size:13px}svg .y{text-anchor:end}svg .x{text-anchor:middle}svg .l{fill:var(--soft)}\
svg .g{stroke:var(--line)}svg .a{stroke:var(--axis)}svg .e{fill:var(--line)}.charts{display:flex;flex-wrap:wrap;gap:.5em}.note{color:var(--soft)}\
@media print{@page{margin:14mm}body{margin:0;max-width:none;padding:0;font-size:11px}.big,pre{border:1px solid var(--line)}pre{white-space:pre-wrap}\
svg,tr,.big div{break-inside:avoid}svg{print-color-adjust:exact;-webkit-print-color-adjust:exact}table{display:table;font-size:9px}td:last-child{white-space:normal}\
th,td{padding:.2em .4em}.charts svg{max-width:48%}}\
svg{color:var(--fg)}svg .s{fill:none;stroke-width:2.2}summary{cursor:pointer;color:var(--soft)}.legend{margin:.5em 0}";

/// Renders a page.
pub(crate) fn document(title: &str, body: &Markup) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width";
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body { (body) }
        }
    };
    page.into_string() + "\n"
}

/// Renders a table.
pub(crate) fn table(heads: &[&str], rows: &[Vec<Markup>]) -> Markup {
    html! {
        table {
            tr { @for head in heads { th { (head) } } }
            @for row in rows { tr { @for cell in row { td { (cell) } } } }
        }
    }
}

/// A cell with text.
pub(crate) fn cell(text: &str) -> Markup {
    html! { (text) }
}
