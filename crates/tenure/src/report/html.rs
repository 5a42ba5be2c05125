//! The HTML of which reports consist.

use maud::{DOCTYPE, Markup, PreEscaped, Render, html};

use super::axis::{NARROW, WIDE};
use super::chart::Chart;
use super::svg::{Drawing, STYLE, printable};

const PAGE_STYLE: &str = include_str!("page.css");

/// Returns a complete page. `footer` ends the sentence that names the program.
pub(super) fn document(title: &str, body: &Markup, footer: &str) -> String {
    let mut page = printable(html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (title) " — Tenure" }
                style { (PreEscaped(STYLE)) (PreEscaped(PAGE_STYLE)) }
            }
            body {
                (body)
                footer {
                    "Written by Tenure " (env!("CARGO_PKG_VERSION"))
                    ". Sizes are decimal (1 GB = 10⁹ bytes) unless a unit says otherwise. " (footer)
                }
            }
        }
    });
    page.push('\n');
    page
}

/// Returns the beginning of a page: `extra` follows the title, and `facts` are names and values.
pub(super) fn header(kind: &str, title: &str, extra: &Markup, facts: &[(&str, String)]) -> Markup {
    html! {
        header {
            p.muted { (kind) }
            h1 { (title) }
            (extra)
            dl {
                @for (name, value) in facts {
                    div { dt { (name) } dd { (value) } }
                }
            }
        }
    }
}

pub(super) fn section(title: &str, text: impl Render, content: impl Render) -> Markup {
    html! {
        section {
            h2 { (title) }
            p.muted { (text) }
            (content)
        }
    }
}

pub(super) fn figure(chart: &Chart) -> Markup {
    drawings(|width| chart.drawing(width))
}

/// Returns two drawings, one for wide and one for narrow windows; the style sheet shows one of them.
pub(super) fn drawings(draw: impl Fn(f64) -> Drawing) -> Markup {
    html! {
        div.wide { (draw(WIDE).inline()) }
        div.narrow { (draw(NARROW).inline()) }
    }
}

/// Returns a table of `rows`, each a `tr`.
pub(super) fn table(heads: &[&str], rows: &Markup) -> Markup {
    html! {
        div.scroll {
            table {
                thead { tr { @for head in heads { th scope="col" { (head) } } } }
                tbody { (rows) }
            }
        }
    }
}

/// Returns a name after a square in the colour of `class`.
pub(super) fn keyed(class: &str, name: impl Render) -> Markup {
    html! { span.swatch.(class) {} (name) }
}

/// Returns a text that may take several lines, broken after dots.
pub(super) fn breakable(text: &str) -> Markup {
    html! {
        @for (index, part) in text.split('.').enumerate() {
            @if index > 0 { "." wbr; }
            (part)
        }
    }
}
