//! Tests of requests that web pages send.

use std::net::SocketAddr;

use tenure_serve::server::InferenceServerConfig;

use crate::loopback::{Answer, Served, receive};
use crate::shared_memory::Object;

const INFER: &str = r#"{"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1.5, 2]}]}"#;
const UNLOAD: &str = "/v2/repository/models/echo_fp32/unload";

/// All routes but those of health checks.
const ROUTES: [(&str, &str); 21] = [
    ("GET", "/"),
    ("GET", "/openapi.json"),
    ("GET", "/events"),
    ("GET", "/metrics"),
    ("GET", "/v2"),
    ("GET", "/v2/models/echo_fp32"),
    ("GET", "/v2/models/echo_fp32/ready"),
    ("GET", "/v2/models/echo_fp32/config"),
    ("GET", "/v2/models/stats"),
    ("POST", "/v2/models/echo_fp32/infer"),
    ("POST", "/v2/models/echo%5Ffp32/infer"),
    ("POST", "/v2/repository/index"),
    ("POST", "/v2/repository/models/echo_fp32/load"),
    ("POST", UNLOAD),
    ("POST", "/v2/systemsharedmemory/region/r/register"),
    ("POST", "/v2/systemsharedmemory/unregister"),
    ("GET", "/v2/systemsharedmemory/status"),
    ("POST", "/v2/cudasharedmemory/region/r/register"),
    ("POST", "/v1/embeddings"),
    ("GET", "/v1/models"),
    ("OPTIONS", UNLOAD),
];

fn served() -> Served {
    Served::with(InferenceServerConfig::default())
}

fn allowing(hosts: &[&str], origins: &[&str]) -> Served {
    Served::with(InferenceServerConfig {
        hosts: hosts.iter().map(|host| host.parse().unwrap()).collect(),
        origins: origins.iter().map(|origin| origin.parse().unwrap()).collect(),
        ..InferenceServerConfig::default()
    })
}

fn infer(served: &Served, headers: &[&str]) -> Answer {
    served.ask("POST", "/v2/models/echo_fp32/infer", headers, INFER.as_bytes())
}

fn is_ready(served: &Served) -> bool {
    served.ask("GET", "/v2/models/echo_fp32/ready", &[], &[]).status == 200
}

#[test]
fn a_page_of_another_site_is_refused_everywhere() {
    let served = served();
    let other_port = format!("Origin: http://{}", SocketAddr::from(([127, 0, 0, 1], 1)));
    for (method, path) in ROUTES {
        for header in [
            "Origin: https://evil.example",
            "Origin: null",
            &other_port,
            "Sec-Fetch-Site: cross-site",
            "Sec-Fetch-Site: same-site",
        ] {
            assert_eq!(served.ask(method, path, &[header], &[]).error().0, 403, "{method} {path} {header}");
        }
        for host in ["evil.example", "127.0.0.1.evil.example:8000", "localhost.evil.example", "[::1", ""] {
            let answer = served.ask(method, path, &[&format!("Host: {host}")], &[]);
            assert_eq!(answer.error().0, 421, "{method} {path} {host}");
        }
    }
    assert!(is_ready(&served));
}

#[test]
fn a_form_registers_no_shared_memory() {
    let served = served();
    let object = Object::new(&[0; 8]);
    let body = format!(r#"{{"key": {:?}, "offset": 0, "byte_size": 8}}"#, object.name);
    let register = |headers: &[&str]| {
        served.ask("POST", "/v2/systemsharedmemory/region/r/register", headers, body.as_bytes()).status
    };
    for kind in
        ["text/plain", "Text/Plain;charset=UTF-8", "text/plain,application/json", "multipart/form-data; boundary=b"]
    {
        assert_eq!(register(&[&format!("Content-Type: {kind}")]), 415, "{kind}");
    }
    let form = "Content-Type: application/x-www-form-urlencoded";
    assert_eq!(register(&[form, "Sec-Fetch-Site: none"]), 415);
    assert_eq!(served.status(""), "[]");
    // This is the default of `curl -d`.
    assert_eq!(register(&[form]), 200);
}

#[test]
fn the_servers_own_page_and_other_programs_are_answered() {
    let served = served();
    let port = served.address.port();
    for headers in [
        &["Content-Type: application/json"][..],
        &["Content-Type: application/octet-stream"],
        &["Content-Type: application/x-www-form-urlencoded"],
        &[
            &format!("Host: localhost:{port}"),
            &format!("Origin: http://localhost:{port}"),
            "Sec-Fetch-Site: same-origin",
        ],
        &[&format!("Host: 192.168.0.1:{port}"), &format!("Origin: http://192.168.0.1:{port}")],
        &["Host: LOCALHOST."],
        &["Host: [::1]:8000", "Origin: https://[::1]:8000", "Sec-Fetch-Site: same-origin"],
        &["Sec-Fetch-Site: none", "Sec-Fetch-Mode: navigate"],
    ] {
        assert_eq!(infer(&served, headers).status, 200, "{headers:?}");
    }
    let without_host = "GET /v2 HTTP/1.0\r\n\r\n";
    assert_eq!(receive(served.send(without_host.as_bytes())).unwrap().status, 200);
}

#[test]
fn a_link_of_another_site_opens_the_page() {
    let served = served();
    let link = ["Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate"];
    assert_eq!(served.ask("GET", "/", &link, &[]).status, 200);
    assert_eq!(served.ask("POST", UNLOAD, &link, &[]).status, 403);
    assert!(is_ready(&served));
}

#[test]
fn a_health_check_is_answered_by_any_name() {
    for path in ["/v2/health/live", "/v2/health/ready", "/health", "/healthz"] {
        assert_eq!(served().ask("GET", path, &["Host: pod.example"], &[]).status, 200);
    }
}

#[test]
fn names_and_origins_can_be_allowed() {
    let served = allowing(&["models.example"], &["https://app.example"]);
    let host = "Host: Models.Example:8443";
    assert_eq!(infer(&served, &[host]).status, 200);
    assert_eq!(infer(&served, &["Host: other.example"]).status, 421);
    assert_eq!(infer(&served, &[host, "Origin: https://models.example:8443"]).status, 200);
    let allowed = "Origin: https://app.example";
    assert_eq!(infer(&served, &[allowed, "Sec-Fetch-Site: cross-site"]).status, 200);
    assert_eq!(infer(&served, &[allowed, "Host: other.example"]).status, 421);
    for other in ["http://app.example", "https://app.example:8443", "https://x.app.example"] {
        assert_eq!(infer(&served, &[&format!("Origin: {other}")]).status, 403, "{other}");
    }
    assert_eq!(infer(&allowing(&["*"], &[]), &["Host: other.example"]).status, 200);
}

#[test]
fn a_token_shows_that_a_client_is_no_page_of_another_site() {
    let config = InferenceServerConfig { tokens: vec!["secret".into()], ..InferenceServerConfig::default() };
    let served = Served::with(config);
    let headers = ["Host: models.example", "Origin: https://public.example"];
    assert_eq!(infer(&served, &headers).status, 401);
    assert_eq!(infer(&served, &[&headers[..], &["Authorization: Bearer secret"]].concat()).status, 200);
}

#[test]
fn a_browser_is_told_which_origins_may_ask_and_read() {
    let allowed = "https://app.example";
    for tokens in [vec![], vec!["secret".to_owned()]] {
        let origins = vec![allowed.parse().unwrap()];
        let served = Served::with(InferenceServerConfig { origins, tokens, ..InferenceServerConfig::default() });
        let ask = |origin: &str| {
            let origin = format!("Origin: {origin}");
            let asked = ["Access-Control-Request-Method: POST", "Access-Control-Request-Headers: authorization"];
            served.ask("OPTIONS", "/v2/models/echo_fp32/infer", &[&*origin, asked[0], asked[1]], &[])
        };
        let answer = ask(allowed);
        assert_eq!((answer.status, &*answer.headers["access-control-allow-origin"]), (204, allowed));
        assert_eq!(answer.headers["access-control-allow-methods"], "GET, POST");
        assert_eq!(answer.headers["access-control-allow-headers"], "authorization");
        let other = ask("https://evil.example");
        assert!(other.status >= 400, "{other:?}");
        assert!(!other.headers.contains_key("access-control-allow-origin"), "{other:?}");
        assert_eq!(other.headers["vary"], "origin");

        let token = "Authorization: Bearer secret";
        let answer = infer(&served, &[&format!("Origin: {allowed}"), token]);
        assert_eq!((answer.status, &*answer.headers["access-control-allow-origin"]), (200, allowed));
        assert_eq!(answer.headers["vary"], "origin");
        // A page may read errors, too.
        let refused = served.ask("POST", "/v2/models/none/infer", &[&format!("Origin: {allowed}"), token], b"{}");
        assert_eq!((refused.status, &*refused.headers["access-control-allow-origin"]), (404, allowed));
    }
    assert!(!infer(&served(), &[]).headers.contains_key("vary"));
}
