//! Tests of the description of all routes.

use std::collections::BTreeSet;

use serde_json::Value;
use tenure_serve::server::InferenceServerConfig;

use crate::loopback::Served;

fn description(served: &Served) -> Value {
    let answer = served.ask("GET", "/openapi.json", &[], &[]);
    assert_eq!((answer.status, &*answer.headers["content-type"]), (200, "application/json"));
    serde_json::from_slice(&answer.body).unwrap()
}

fn address(path: &str) -> String {
    path.replace("{model}", "echo_fp32").replace("{version}", "1").replace("{region}", "r")
}

#[test]
fn each_path_has_the_methods_that_it_is_described_with() {
    let served = Served::with(InferenceServerConfig::default());
    for (path, item) in description(&served)["paths"].as_object().unwrap() {
        let described: BTreeSet<String> =
            item.as_object().unwrap().keys().filter(|key| *key != "parameters").map(|key| key.to_uppercase()).collect();
        let refused = served.ask("DELETE", &address(path), &[], &[]);
        assert_eq!(refused.status, 405, "{path}");
        let allowed =
            refused.headers["allow"].split(',').filter(|method| *method != "HEAD").map(String::from).collect();
        assert_eq!(described, allowed, "{path}");
    }
}

#[test]
fn each_answer_has_a_status_that_is_described() {
    for tokens in [vec![], vec!["secret".to_owned()]] {
        let served = Served::with(InferenceServerConfig { tokens, ..InferenceServerConfig::default() });
        // The page's events have no end.
        for (path, item) in
            description(&served)["paths"].as_object().unwrap().iter().filter(|(path, _)| *path != "/events")
        {
            for (method, operation) in item.as_object().unwrap().iter().filter(|(key, _)| *key != "parameters") {
                let method = method.to_uppercase();
                for (headers, body) in [
                    (&[][..], &b"[]"[..]),
                    (&["Origin: https://evil.example"], b""),
                    (&["Host: other.example"], b"{}"),
                    (&["Content-Encoding: br"], b"{}"),
                    (&["Content-Type: text/plain"], b"{}"),
                ] {
                    let headers = [headers, &["Authorization: Bearer wrong"]].concat();
                    let status = served.ask(&method, &address(path), &headers, body).status.to_string();
                    assert!(operation["responses"].get(&status).is_some(), "{method} {path} {headers:?}: {status}");
                }
            }
        }
    }
}
