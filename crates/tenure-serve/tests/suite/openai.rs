//! Tests of OpenAI's routes over loopback.

use serde_json::{Value, json};
use tenure_serve::server::InferenceServerConfig;

use crate::loopback::{Answer, Served};

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    /// Returns the status, the message, the parameter and the code of an error.
    fn refused(&self) -> (u16, String, Value, Value) {
        let error = self.json()["error"].clone();
        assert!(error["type"].is_string(), "{error}");
        (self.status, error["message"].as_str().unwrap().into(), error["param"].clone(), error["code"].clone())
    }
}

impl Served {
    fn embed(&self, body: &Value) -> Answer {
        self.ask("POST", "/v1/embeddings", &[], body.to_string().as_bytes())
    }

    fn vectors(&self, body: &Value) -> Vec<Value> {
        let answer = self.embed(body);
        assert_eq!(answer.status, 200, "{}", answer.text());
        let vectors = answer.json()["data"].as_array().unwrap().clone();
        for (index, vector) in vectors.iter().enumerate() {
            assert_eq!((&vector["object"], &vector["index"]), (&json!("embedding"), &json!(index)));
        }
        vectors.into_iter().map(|vector| vector["embedding"].clone()).collect()
    }
}

#[test]
fn texts_and_tokens_have_vectors_in_their_order() {
    let served = Served::with(InferenceServerConfig::default());
    let expected = [json!([198.0, 3.0, 2.0]), json!([97.0, 1.0, 2.0]), json!([194.0, 2.0, 1.0])];
    let texts = json!({ "model": "vectors", "input": ["ab\u{3}", "a", "aa"], "user": "me" });
    let found = served.vectors(&texts);
    // Two of similar length are computed together, the longest alone.
    assert_eq!(found, [json!([198.0, 3.0, 1.0]), expected[1].clone(), json!([194.0, 2.0, 2.0])]);
    let usage = served.embed(&texts).json()["usage"].clone();
    assert_eq!(usage, json!({ "prompt_tokens": 6, "total_tokens": 6 }));
    assert_eq!(served.vectors(&json!({ "model": "vectors", "input": "aa" })), [expected[2].clone()]);
    assert_eq!(served.vectors(&json!({ "model": "vectors", "input": [97, 97] })), [expected[2].clone()]);
    let lists = served.vectors(&json!({ "model": "vectors", "input": [[97], [97, 98, 3]] }));
    assert_eq!(lists, [expected[1].clone(), expected[0].clone()]);
}

#[test]
fn a_long_list_makes_no_other_longer() {
    let served = Served::with(InferenceServerConfig::default());
    let found = served.vectors(&json!({ "model": "vectors", "input": [vec![0; 40_000], [1]] }));
    assert_eq!(found, [json!([0.0, 40_000.0, 1.0]), json!([1.0, 1.0, 1.0])]);
}

#[test]
fn a_model_that_takes_texts_gets_them_as_they_are() {
    let served = Served::with(InferenceServerConfig::default());
    let texts = json!({ "model": "texts", "input": ["~", "ä"] });
    assert_eq!(served.vectors(&texts), [json!([126.0, 1.0, 2.0]), json!([359.0, 2.0, 2.0])]);
    let answer = served.embed(&texts).json();
    assert_eq!((&answer["object"], &answer["model"]), (&json!("list"), &json!("texts")));
    assert_eq!(answer["usage"]["prompt_tokens"], 0);
    let (status, message, param, _) = served.embed(&json!({ "model": "texts", "input": [1] })).refused();
    assert_eq!((status, &*message, param), (400, "the model takes texts, and no tokens", json!("input")));
}

#[test]
fn a_vector_may_be_shorter_and_in_base64() {
    let served = Served::with(InferenceServerConfig::default());
    let base64 = served.vectors(&json!({ "model": "vectors", "input": [1], "encoding_format": "base64" }));
    assert_eq!(base64, [json!("AACAPwAAgD8AAIA/")]);
    let shorter = served.vectors(&json!({ "model": "vectors", "input": [1, 2], "dimensions": 1 }));
    assert_eq!(shorter, [json!([1.0])]);
}

#[test]
fn a_request_that_cannot_be_says_what_is_wrong_with_it() {
    let served = Served::with(InferenceServerConfig::default());
    let refused = |body: Value| served.embed(&body).refused();
    let (status, message, param, code) = refused(json!({ "model": "unknown", "input": "a" }));
    assert_eq!((status, param, code), (404, json!("model"), json!("model_not_found")));
    assert!(message.starts_with("unknown model \"unknown\""), "{message}");
    for (changes, param) in [
        (json!({ "input": "" }), json!("input")),
        (json!({ "input": [] }), json!("input")),
        (json!({ "input": [[]] }), json!("input")),
        (json!({ "input": ["a", 1] }), json!("input")),
        (json!({ "input": [-1] }), json!("input")),
        (json!({ "input": null }), json!("input")),
        (json!({ "input": { "a": 1 } }), json!("input")),
        (json!({ "input": "a~b" }), json!("input")),
        (json!({ "input": vec!["a"; 2049] }), json!("input")),
        (json!({ "encoding_format": "hex" }), json!("encoding_format")),
        (json!({ "dimensions": 0 }), json!("dimensions")),
        (json!({ "dimensions": 4 }), json!("dimensions")),
        (json!({ "model": "echo_fp32" }), json!("model")),
        (json!({ "model": 5 }), json!(null)),
    ] {
        let mut body = json!({ "model": "vectors", "input": "a" });
        body.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        let (status, message, found, code) = refused(body);
        assert_eq!((status, found, code), (400, param, json!(null)), "{changes}: {message}");
    }
    assert_eq!(served.ask("POST", "/v1/embeddings", &[], b"{").refused().0, 400);
    assert_eq!(served.embed(&json!({ "model": "vectors", "input": "a" })).status, 200);
}

#[test]
fn models_are_listed_as_openai_lists_them() {
    let served = Served::with(InferenceServerConfig::default());
    let listed = served.ask("GET", "/v1/models", &[], b"").json();
    let object = |id: &str| json!({ "id": id, "object": "model", "created": 0, "owned_by": "tenure" });
    // Other models can be asked for nothing here.
    assert_eq!(listed, json!({ "object": "list", "data": [object("vectors"), object("texts")] }));
    assert_eq!(served.ask("GET", "/v1/models/vectors", &[], b"").json(), object("vectors"));
    let (status, _, parameter, _) = served.ask("GET", "/v1/models/echo_fp32", &[], b"").refused();
    assert_eq!((status, parameter), (400, json!("model")));
    let (status, _, _, code) = served.ask("GET", "/v1/models/unknown", &[], b"").refused();
    assert_eq!((status, code), (404, json!("model_not_found")));
}

#[test]
fn errors_of_all_routes_have_openais_form() {
    let served =
        Served::with(InferenceServerConfig { tokens: vec!["secret".into()], ..InferenceServerConfig::default() });
    let (status, message, _, code) = served.ask("GET", "/v1/models", &[], b"").refused();
    assert_eq!((status, code), (401, json!("invalid_api_key")), "{message}");
    let asked = |method: &str, path: &str| served.ask(method, path, &["Authorization: Bearer secret"], b"");
    assert_eq!(asked("GET", "/v1/embeddings").refused().0, 405);
    assert_eq!(asked("POST", "/v1/chat/completions").refused().0, 404);
    assert_eq!(asked("GET", "/v1/models").status, 200);
    assert!(asked("GET", "/v2/nothing").json()["error"].is_string());
}

#[test]
fn requests_for_vectors_are_counted() {
    let served = Served::with(InferenceServerConfig::default());
    served.embed(&json!({ "model": "vectors", "input": "a" }));
    served.embed(&json!({ "model": "vectors", "input": "" }));
    let counted = served.ask("GET", "/metrics", &[], b"").text();
    for outcome in ["answered", "refused"] {
        assert_eq!(
            counted.lines().filter(|line| line.contains("model=\"vectors\"") && line.contains(outcome)).count(),
            1,
            "{outcome}: {counted}"
        );
    }
}
