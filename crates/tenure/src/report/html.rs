//! The HTML of which reports consist.

use std::fmt::Display;

use super::axis::{NARROW, WIDE};
use super::chart::{Chart, STYLE};
use super::escape::escape;

const PAGE_STYLE: &str = include_str!("page.css");

/// Returns a complete page: `title` as text, `body` as HTML. `footer` ends the sentence that names the program.
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

/// Returns the beginning of a page. `extra` is HTML, the other arguments are text.
pub(super) fn header(kind: &str, title: &str, extra: &str, facts: &[(&str, String)]) -> String {
    let facts: String =
        facts.iter().map(|(name, value)| format!("<div><dt>{name}</dt><dd>{}</dd></div>\n", escape(value))).collect();
    format!(
        "<header>\n<p class=\"muted\">{kind}</p>\n<h1>{}</h1>\n{extra}<dl>\n{facts}</dl>\n</header>\n",
        escape(title)
    )
}

/// Returns a highlighted sentence, given as text. `class` is its class in the style sheet.
pub(super) fn remark(text: &str, class: &str) -> String {
    format!("<p class=\"{class}\">{}</p>\n", escape(text))
}

pub(super) fn section(title: &str, text: &str, content: &str) -> String {
    format!("<section>\n<h2>{title}</h2>\n<p class=\"muted\">{text}</p>\n{content}</section>\n")
}

pub(super) fn figure(chart: &Chart) -> String {
    drawings(|width| chart.inline(width))
}

/// Returns two drawings, one for wide and one for narrow windows; the style sheet shows one of them.
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
