//! The HTML that reports are made of.

use std::fmt::{Display, Write};

use super::axis::{NARROW, WIDE};
use super::chart::{Chart, STYLE};

const PAGE_STYLE: &str = include_str!("page.css");

/// A page of its own: `title` as text, `body` as HTML. `footer` ends the sentence on who wrote it.
pub(super) fn document(title: &str, body: &str, footer: &str) -> String {
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{} — Tenure</title>\n<style>\n{STYLE}{PAGE_STYLE}</style>\n</head>\n<body>\n{body}\
         <footer>Written by Tenure {}. Sizes are decimal (1 GB = 10⁹ bytes) unless a unit says otherwise. \
         {footer}</footer>\n</body>\n</html>\n",
        escape(title),
        env!("CARGO_PKG_VERSION"),
    )
}

/// What a page begins with. `extra` is HTML, everything else text.
pub(super) fn header(kind: &str, title: &str, extra: &str, facts: &[(&str, String)]) -> String {
    let facts: String =
        facts.iter().map(|(name, value)| format!("<div><dt>{name}</dt><dd>{}</dd></div>\n", escape(value))).collect();
    format!(
        "<header>\n<p class=\"muted\">{kind}</p>\n<h1>{}</h1>\n{extra}<dl>\n{facts}</dl>\n</header>\n",
        escape(title)
    )
}

/// A sentence that stands out, as text. `class` is what the style sheet calls it.
pub(super) fn remark(text: &str, class: &str) -> String {
    format!("<p class=\"{class}\">{}</p>\n", escape(text))
}

pub(super) fn section(title: &str, text: &str, content: &str) -> String {
    format!("<section>\n<h2>{title}</h2>\n<p class=\"muted\">{text}</p>\n{content}</section>\n")
}

pub(super) fn figure(chart: &Chart) -> String {
    drawings(|width| chart.inline(width))
}

/// A drawing for wide and one for narrow windows, of which the style sheet shows one.
pub(super) fn drawings(draw: impl Fn(f64) -> String) -> String {
    format!("<div class=\"wide\">{}</div>\n<div class=\"narrow\">{}</div>\n", draw(WIDE), draw(NARROW))
}

pub(super) fn table(heads: &[&str], rows: impl Iterator<Item = String>) -> String {
    let heads: String = heads.iter().map(|head| format!("<th scope=\"col\">{head}</th>")).collect();
    format!(
        "<div class=\"scroll\"><table>\n<thead><tr>{heads}</tr></thead>\n<tbody>\n{}</tbody>\n</table></div>\n",
        rows.collect::<String>()
    )
}

pub(super) fn row(name: impl Display, cells: &[&dyn Display]) -> String {
    let cells: String = cells.iter().map(|cell| format!("<td>{cell}</td>")).collect();
    format!("<tr><th scope=\"row\">{name}</th>{cells}</tr>\n")
}

/// `text` as it stands in HTML or XML.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            // XML has no place for other control characters.
            character if character.is_control() && character != '\n' => {
                write!(escaped, "\\u{{{:x}}}", character as u32).expect("a string takes every character");
            }
            character => escaped.push(character),
        }
    }
    escaped
}
