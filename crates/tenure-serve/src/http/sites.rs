//! Requests of web pages: the names by which the server is asked, and the origins whose pages may use it.
//!
//! A server without tokens trusts all clients that reach it. Browsers are among them, and send requests for the pages of
//! any site. [`Sites::check`] refuses those of other sites by what browsers put into them:
//!
//! - `Host` has the name in the page's address. A site can let its own name stand for the server's address (DNS
//!   rebinding), so names have to be known. No site can do so with an IP address, or with `localhost`.
//! - `Origin` and `Sec-Fetch-Site` say which site a page is of.
//! - Some media types are those of forms, which need no permission to be sent to other sites.
//!
//! Requests with a token are not checked: a browser has no token of its own to add to the requests of a page.

use std::net::IpAddr;
use std::str::FromStr;

use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, Method, header};

use crate::service::ServeError;

/// The media types that a page may send to another site without asking it first. The first one is also curl's default.
const FORM: &str = "application/x-www-form-urlencoded";
const OTHER_FORMS: [&str; 2] = ["text/plain", "multipart/form-data"];

/// A name by which clients may ask a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostName {
    /// Every name.
    Any,
    /// A name without a port, in lower case.
    Named(String),
}

/// The text is not a name, or not an origin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SiteError(&'static str);

impl FromStr for HostName {
    type Err = SiteError;

    /// Parses a name, or `*` for every name.
    fn from_str(text: &str) -> Result<Self, SiteError> {
        if text == "*" {
            return Ok(Self::Any);
        }
        let authority: Option<Authority> = text.parse().ok();
        match authority {
            Some(authority) if authority.host() == text && !text.contains('*') => Ok(Self::Named(name(&authority))),
            _ => Err(SiteError("a host is a name without a scheme or port, such as models.example.com, or *")),
        }
    }
}

impl HostName {
    fn includes(&self, name: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Named(known) => known == name,
        }
    }
}

/// A site's origin: a scheme, a host, and a port unless it is the scheme's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin(String);

impl FromStr for Origin {
    type Err = SiteError;

    /// Parses an origin such as `https://app.example.com`.
    fn from_str(text: &str) -> Result<Self, SiteError> {
        let text = text.to_ascii_lowercase();
        let is_origin = authority(&text).is_some_and(|authority| authority.parse::<Authority>().is_ok());
        if is_origin { Ok(Self(text)) } else { Err(SiteError("an origin is such as https://app.example.com")) }
    }
}

/// Returns the host, and the port if there is one, of an origin.
fn authority(origin: &str) -> Option<&str> {
    origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"))
}

/// Returns the host's name in one spelling.
fn name(authority: &Authority) -> String {
    authority.host().trim_end_matches('.').to_ascii_lowercase()
}

/// The sites that a server knows.
pub(crate) struct Sites {
    pub(crate) hosts: Vec<HostName>,
    pub(crate) origins: Vec<Origin>,
}

impl Sites {
    /// Refuses a request without a token that a page of another site may have sent.
    pub(super) fn check(&self, method: &Method, headers: &HeaderMap) -> Result<(), ServeError> {
        // Every browser sends this header, so a request without it is not a page's.
        for host in headers.get_all(header::HOST) {
            check_host(&self.hosts, host)?;
        }
        let origin = headers.get(header::ORIGIN);
        let is_allowed = origin.is_some_and(|origin| is_allowed(&self.origins, origin));
        if !is_allowed {
            let is_own = origin.is_none_or(|origin| is_own(headers, origin));
            if !is_own || is_from_other_page(method, headers) {
                return Err(ServeError::OtherSite);
            }
        }
        if method == Method::POST { check_content_type(headers) } else { Ok(()) }
    }
}

fn check_host(hosts: &[HostName], host: &HeaderValue) -> Result<(), ServeError> {
    let authority = host.to_str().ok().and_then(|host| host.parse::<Authority>().ok());
    let name = authority.as_ref().map(name);
    let is_known = name.as_ref().is_some_and(|name| {
        let is_address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().is_ok();
        is_address || name == "localhost" || hosts.iter().any(|host| host.includes(name))
    });
    if is_known { Ok(()) } else { Err(ServeError::OtherHost(String::from_utf8_lossy(host.as_bytes()).into_owned())) }
}

/// Returns whether an origin is one of `origins`.
pub(super) fn is_allowed(origins: &[Origin], origin: &HeaderValue) -> bool {
    origins.iter().any(|known| known.0.as_bytes().eq_ignore_ascii_case(origin.as_bytes()))
}

/// Returns whether an origin is that of the server's own pages. The scheme may differ, since a proxy may add TLS.
fn is_own(headers: &HeaderMap, origin: &HeaderValue) -> bool {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let asking = origin.to_str().ok().and_then(authority);
    host.zip(asking).is_some_and(|(host, asking)| host.eq_ignore_ascii_case(asking))
}

/// Returns whether a browser says that a request is another site's. A link there may lead here: its page cannot read the
/// answer, and GET changes nothing.
fn is_from_other_page(method: &Method, headers: &HeaderMap) -> bool {
    let has = |name: &str, values: &[&str]| {
        headers.get(name).is_some_and(|value| values.iter().any(|known| value.as_bytes() == known.as_bytes()))
    };
    let is_link = method == Method::GET && has("sec-fetch-mode", &["navigate"]);
    has("sec-fetch-site", &["cross-site", "same-site"]) && !is_link
}

/// Refuses the media types of forms. Clients such as curl send one of them by default: it is refused to browsers only.
fn check_content_type(headers: &HeaderMap) -> Result<(), ServeError> {
    let is_browser = ["origin", "sec-fetch-site", "sec-fetch-mode"].iter().any(|name| headers.contains_key(*name));
    for value in headers.get_all(header::CONTENT_TYPE) {
        let text = String::from_utf8_lossy(value.as_bytes());
        let essence = text.split([';', ',']).next().unwrap_or_default().trim();
        let is_one_of = |types: &[&str]| types.iter().any(|kind| essence.eq_ignore_ascii_case(kind));
        if is_one_of(&OTHER_FORMS) || is_browser && is_one_of(&[FORM]) {
            return Err(ServeError::ContentType(essence.into()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_a_name_and_an_origin_has_a_scheme() {
        assert_eq!("Models.Example.com.".parse(), Ok(HostName::Named("models.example.com".into())));
        assert_eq!("*".parse(), Ok(HostName::Any));
        for text in ["", "http://models", "models:80", "user@models", "models/x", "*.example.com"] {
            assert!(text.parse::<HostName>().is_err(), "{text}");
        }
        assert_eq!("https://App.example.com:8443".parse(), Ok(Origin("https://app.example.com:8443".into())));
        for text in ["", "null", "*", "app.example.com", "https://", "https://app.example.com/", "ftp://app"] {
            assert!(text.parse::<Origin>().is_err(), "{text}");
        }
    }
}
