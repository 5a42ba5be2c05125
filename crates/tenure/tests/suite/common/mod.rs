//! Helpers that several tests of reports share.

/// Panics if a page loads anything from elsewhere, runs a script, or leaves an element open.
pub(crate) fn assert_self_contained(html: &str) {
    let links = html.replace("xmlns=\"http://www.w3.org/2000/svg\"", "");
    for reference in ["http:", "https:", "src=", "href=", "url(", "@import", "<script"] {
        assert!(!links.contains(reference), "{reference}");
    }
    for element in ["svg", "table", "tr", "section", "details", "div", "g", "p", "title", "style"] {
        let opened = html.matches(&format!("<{element} ")).count() + html.matches(&format!("<{element}>")).count();
        assert_eq!(opened, html.matches(&format!("</{element}>")).count(), "{element}");
    }
}
