//! The live page: the server's current state as HTML. A script keeps it up to date from the feed; without scripts the
//! browser reloads the page periodically.

use std::fmt::Write;
use std::time::Duration;

use crate::metrics::{Latency, Switch};
use crate::protocol::ModelState;
use crate::service::{ModelSnapshot, Resident, Snapshot, Tier};

/// The page's style.
pub(super) const STYLE: &str = include_str!("page.css");

/// The page's script, which shows the snapshots of the feed.
pub(super) const SCRIPT: &str = include_str!("page.js");

/// The reload period without scripts, in seconds.
const REFRESH: u32 = 2;

/// The number of latest switches that are shown.
const SWITCHES: usize = 12;

/// Returns the page as HTML that is also well-formed XML.
pub(super) fn page(snapshot: &Snapshot) -> String {
    let Snapshot { uptime, tiers, models, switches } = snapshot;
    let seconds = uptime.as_secs();
    let sum = |of: fn(&ModelSnapshot) -> u64| models.iter().map(of).sum::<u64>();
    let ready = models.iter().filter(|model| model.state == ModelState::Ready).count();
    let facts = [
        ("Models ready", format!("{ready} of {}", models.len())),
        ("Requests waiting", sum(|model| model.queued).to_string()),
        ("Requests answered", sum(|model| model.answered).to_string()),
        ("Switches", sum(|model| model.switches).to_string()),
        ("Running for", format!("{}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)),
    ];
    let facts: String =
        facts.iter().map(|(name, fact)| format!("<div><dt>{name}</dt><dd>{fact}</dd></div>\n")).collect();
    let tiers: String = tiers.iter().map(tier).collect();
    let rows: String = models.iter().map(row).collect();
    let switches: String = switches.iter().take(SWITCHES).map(switch).collect();
    let head = format!("<noscript><meta http-equiv=\"refresh\" content=\"{REFRESH}\"/></noscript>\n");
    document(
        &head,
        &format!(
            "<div id=\"shown\">\n<dl>\n{facts}</dl>\n<div id=\"tiers\">\n{tiers}</div>\n\
             <h2>Latest switches</h2>\n<ol id=\"switches\">{switches}</ol>\n\
             <h2>Models</h2>\n<table>\n<thead><tr><th scope=\"col\">Model</th><th scope=\"col\">State</th>\
             <th scope=\"col\">Weights</th><th scope=\"col\">Waiting</th><th scope=\"col\">Answered</th>\
             <th scope=\"col\">Switches</th><th scope=\"col\">Median</th><th scope=\"col\">p99</th>\
             <th scope=\"col\">Last answers</th></tr></thead>\n<tbody>\n{rows}</tbody>\n</table>\n</div>\n"
        ),
    )
}

/// Returns the page for a client without a token: it asks for one and reveals nothing about the server.
pub(super) fn locked() -> String {
    document(
        "",
        "<noscript><p>This server asks for a token, which this page sends by a script: allow scripts, or send the header \
         Authorization: Bearer TOKEN.</p></noscript>\n",
    )
}

/// Returns a document with the page's title, style and script.
fn document(head: &str, body: &str) -> String {
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
         <title>Tenure serves</title>\n{head}<link rel=\"stylesheet\" href=\"page.css\"/>\n\
         <script src=\"page.js\" defer=\"defer\"></script>\n</head>\n<body>\n\
         <header><h1>Tenure serves</h1><span id=\"link\" role=\"status\"></span></header>\n\
         <form id=\"token\" hidden=\"hidden\"><label for=\"secret\">This server asks for a token</label>\
         <input id=\"secret\" type=\"password\" autocomplete=\"off\" required=\"required\"/>\
         <button>Show</button></form>\n{body}\
         <footer>Tenure {}. Latencies are of a model's last 1,024 answers. The same and more for Prometheus: \
         <a href=\"metrics\">metrics</a>.</footer>\n</body>\n</html>\n",
        env!("CARGO_PKG_VERSION"),
    )
}

fn tier(tier: &Tier) -> String {
    let Tier { name, used_bytes, capacity_bytes } = tier;
    format!(
        "<p><span>{}: {} of {}</span> <meter max=\"{capacity_bytes}\" value=\"{used_bytes}\"></meter></p>\n",
        escape(name),
        bytes(*used_bytes),
        bytes(*capacity_bytes),
    )
}

fn row(model: &ModelSnapshot) -> String {
    let ModelSnapshot { name, state, resident, queued, answered, switches, latency, last_latencies: _ } = model;
    let weights: Vec<String> =
        resident.iter().map(|Resident { tier, bytes: size }| format!("{} on {}", bytes(*size), escape(tier))).collect();
    let weights = if weights.is_empty() { "–".into() } else { weights.join(", ") };
    let time =
        |of: fn(&Latency) -> Duration| latency.as_ref().map_or("–".into(), |latency| milliseconds(of(latency)));
    format!(
        "<tr><th scope=\"row\">{}</th><td class=\"{state}\">{state}</td><td>{weights}</td><td>{queued}</td>\
         <td>{answered}</td><td>{switches}</td><td>{}</td><td>{}</td><td></td></tr>\n",
        escape(name),
        time(|latency| latency.median),
        time(|latency| latency.p99),
        state = state.name().to_lowercase(),
    )
}

fn switch(switch: &Switch) -> String {
    let Switch { model, took, ended } = switch;
    let model = escape(model);
    let took = milliseconds(*took);
    let ago = ended.elapsed().as_secs();
    format!("<li><b>{model}</b> <span>{took}</span> <small>{ago} s ago</small></li>\n")
}

fn milliseconds(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1e3)
}

fn bytes(bytes: u64) -> String {
    let exact = bytes as f64;
    match bytes {
        0..1_000_000 => format!("{:.1} kB", exact / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", exact / 1e6),
        _ => format!("{:.1} GB", exact / 1e9),
    }
}

/// Escapes `text` for HTML or XML.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            // XML does not allow control characters.
            character if character.is_control() => {
                write!(escaped, "\\u{{{:x}}}", character as u32).expect("a string takes every character");
            }
            character => escaped.push(character),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn every_value_is_shown() {
        let ms = Duration::from_millis;
        let latency = Some(Latency { median: ms(12), p99: ms(345) });
        let resident = vec![Resident { tier: "cuda:0".into(), bytes: 241_000_000 }];
        let state = ModelState::Ready;
        let model = ModelSnapshot {
            name: "resnet".into(),
            state,
            resident,
            queued: 3,
            answered: 17,
            switches: 5,
            latency,
            last_latencies: vec![ms(12)],
        };
        let switches = vec![Switch { model: "vgg".into(), ended: Instant::now(), took: ms(78) }];
        let tiers = vec![Tier { name: "cuda:0".into(), used_bytes: 241_000_000, capacity_bytes: 80_000_000_000 }];
        let page = page(&Snapshot { uptime: ms(3_725_500), tiers, models: vec![model], switches });
        for shown in [
            "1 of 1",
            "1:02:05",
            "cuda:0: 241.0 MB of 80.0 GB",
            ">resnet<",
            ">ready<",
            ">241.0 MB on cuda:0<",
            ">3<",
            ">17<",
            ">5<",
            ">12.0 ms<",
            ">345.0 ms<",
            "<b>vgg</b> <span>78.0 ms</span>",
        ] {
            assert!(page.contains(shown), "{shown} is not in {page}");
        }
    }

    #[test]
    fn a_list_without_switches_is_empty_so_that_the_style_says_so() {
        assert!(page(&Snapshot::default()).contains("<ol id=\"switches\"></ol>"));
    }

    #[test]
    fn a_name_is_text_whatever_is_in_it() {
        let hostile = "</th><script>alert(\"&\")</script>\u{1}\n";
        let model = ModelSnapshot {
            name: hostile.into(),
            state: ModelState::Loading,
            resident: vec![Resident { tier: hostile.into(), bytes: 0 }],
            queued: 0,
            answered: 0,
            switches: 0,
            latency: None,
            last_latencies: Vec::new(),
        };
        let switch = Switch { model: hostile.into(), ended: Instant::now(), took: Duration::ZERO };
        let tier = Tier { name: hostile.into(), used_bytes: 0, capacity_bytes: 0 };
        let page =
            page(&Snapshot { tiers: vec![tier], models: vec![model], switches: vec![switch], ..Snapshot::default() });
        assert!(!page.contains("<script>"));
        assert_eq!(well_formed(&page), Ok(()));
        assert_eq!(well_formed(&locked()), Ok(()));
    }

    /// Checks that tags are closed in the reverse order of their opening.
    fn well_formed(page: &str) -> Result<(), String> {
        let mut open = Vec::new();
        for piece in page.split('<').skip(1) {
            let (tag, text) = piece.split_once('>').ok_or("a tag without an end")?;
            if text.contains('>') {
                return Err(format!("a tag that was not begun: {text}"));
            }
            let name = tag.split_whitespace().next().unwrap_or_default();
            match name.strip_prefix('/') {
                Some(name) if open.pop() != Some(name) => return Err(format!("</{name}> closes another")),
                None if !tag.ends_with('/') && !tag.starts_with('!') => open.push(name),
                _ => {}
            }
        }
        if open.is_empty() { Ok(()) } else { Err(format!("never closed: {open:?}")) }
    }
}
