//! The description of all routes, for clients and tools that read OpenAPI 3.1.

use serde_json::{Map, Value, json};

use crate::protocol::Datatype;

/// A route by one method.
struct Operation {
    method: &'static str,
    path: String,
    summary: &'static str,
    /// The schema of the request's body.
    body: Body,
    answer: Answer,
    /// The statuses of errors, beside those of all routes.
    errors: &'static [u16],
    access: Access,
}

#[derive(Clone, Copy)]
enum Body {
    None,
    /// JSON of this schema, which may be left out.
    Optional(&'static str),
    /// JSON of this schema.
    Required(&'static str),
    /// A request for inference, which may have bytes after its JSON.
    Inference,
}

#[derive(Clone, Copy)]
enum Answer {
    /// No body.
    Empty,
    /// JSON of this schema.
    Json(&'static str),
    /// JSON: a list of this schema.
    List(&'static str),
    /// Another media type.
    Text(&'static str),
    /// An answer of a model, which may have bytes after its JSON.
    Inference,
}

/// The clients that are answered.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    /// All, without a token.
    Health,
    /// All but pages of other sites, without a token.
    Open,
    /// Clients with a token, if there are tokens.
    Token,
    /// The same, in OpenAI's form.
    OpenAi,
}

/// The errors of a body in JSON.
const BODY: &[u16] = &[400, 408, 413, 415];
const MODEL: &[u16] = &[400, 404];
const MODEL_BODY: &[u16] = &[400, 404, 408, 413, 415];
const INFER: &[u16] = &[400, 404, 408, 413, 415, 504];

/// Returns the description of a server that needs a token, or needs none.
pub(super) fn document(has_tokens: bool) -> Value {
    let mut paths: Map<String, Value> = Map::new();
    for operation in operations() {
        let path = paths.entry(operation.path.clone()).or_insert_with(|| path_item(&operation.path));
        path[operation.method] = operation.describe(has_tokens);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Tenure",
            "description": "A model server over the Open Inference Protocol",
            "version": env!("CARGO_PKG_VERSION"),
            "license": { "name": env!("CARGO_PKG_LICENSE"), "identifier": env!("CARGO_PKG_LICENSE") },
        },
        "paths": paths,
        "components": {
            "schemas": schemas(),
            "securitySchemes": { "token": { "type": "http", "scheme": "bearer" } },
        },
    })
}

/// Returns the parameters of a path.
fn path_item(path: &str) -> Value {
    let names = path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let parameters: Vec<Value> = names
        .map(|name| json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string", "minLength": 1 } }))
        .collect();
    if parameters.is_empty() { json!({}) } else { json!({ "parameters": parameters }) }
}

impl Operation {
    fn get(path: impl Into<String>, summary: &'static str, answer: Answer) -> Self {
        let path = path.into();
        Self { method: "get", path, summary, body: Body::None, answer, errors: &[], access: Access::Token }
    }

    fn post(path: impl Into<String>, summary: &'static str, body: Body, answer: Answer) -> Self {
        Self { method: "post", body, errors: BODY, ..Self::get(path, summary, answer) }
    }

    fn errors(self, errors: &'static [u16]) -> Self {
        Self { errors, ..self }
    }

    fn access(self, access: Access) -> Self {
        Self { access, ..self }
    }

    fn describe(&self, has_tokens: bool) -> Value {
        let mut responses = Map::new();
        responses.insert("200".into(), self.answer.describe());
        let has_page = self.path == "/";
        let needs_token = has_tokens && (matches!(self.access, Access::Token | Access::OpenAi) || has_page);
        let by_site: &[u16] = match self.access {
            Access::Health => &[],
            // A token shows that the client is no page of another site.
            _ if has_tokens => &[500],
            _ => &[403, 415, 421, 500],
        };
        let of_all = [503].into_iter().chain(needs_token.then_some(401));
        for status in self.errors.iter().chain(by_site).copied().chain(of_all) {
            let schema = if self.access == Access::OpenAi { "OpenAiError" } else { "Error" };
            let content =
                if has_page && status == 401 { text("text/html; charset=utf-8") } else { in_json(&reference(schema)) };
            responses.insert(status.to_string(), json!({ "description": reason(status), "content": content }));
        }
        let mut operation = json!({ "summary": self.summary, "responses": responses });
        if let Some(body) = self.body.describe() {
            operation["requestBody"] = body;
        }
        if needs_token && !has_page {
            operation["security"] = json!([{ "token": [] }]);
        }
        operation
    }
}

impl Body {
    fn describe(self) -> Option<Value> {
        match self {
            Self::None => None,
            Self::Optional(schema) => Some(json!({ "required": false, "content": in_json(&reference(schema)) })),
            Self::Required(schema) => Some(json!({ "required": true, "content": in_json(&reference(schema)) })),
            Self::Inference => {
                let description = "JSON, or JSON of as many bytes as the header Inference-Header-Content-Length says, \
                                   followed by the bytes of tensors";
                let content = in_json(&reference("InferRequest"));
                Some(json!({ "required": true, "description": description, "content": content }))
            }
        }
    }
}

impl Answer {
    fn describe(self) -> Value {
        match self {
            Self::Empty => json!({ "description": "Done" }),
            Self::Json(schema) => json!({ "description": "The answer", "content": in_json(&reference(schema)) }),
            Self::List(schema) => {
                let list = json!({ "type": "array", "items": reference(schema) });
                json!({ "description": "The answer", "content": in_json(&list) })
            }
            Self::Text(kind) => json!({ "description": "The answer", "content": text(kind) }),
            Self::Inference => {
                let mut content = in_json(&reference("InferResponse"));
                content["application/octet-stream"] = json!({});
                let header = json!({
                    "description": "The bytes of JSON before those of tensors, if there are any",
                    "schema": { "type": "integer" },
                });
                json!({
                    "description": "The outputs",
                    "headers": { "Inference-Header-Content-Length": header },
                    "content": content,
                })
            }
        }
    }
}

fn in_json(schema: &Value) -> Value {
    json!({ "application/json": { "schema": schema } })
}

fn text(kind: &str) -> Value {
    let mut content = json!({});
    content[kind] = json!({ "schema": { "type": "string" } });
    content
}

fn reference(schema: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{schema}") })
}

/// Returns what an error's status says.
fn reason(status: u16) -> &'static str {
    match status {
        400 => "The request is invalid",
        401 => "The token is missing or wrong",
        403 => "The client may not do this",
        404 => "Unknown model, version or region",
        408 => "The body did not come in time",
        413 => "The request is too large",
        415 => "The body has another media type or compression",
        421 => "The server does not answer by this name",
        503 => "The server or the model cannot answer now",
        504 => "The request's timeout passed",
        _ => "The server failed",
    }
}

fn operations() -> Vec<Operation> {
    let mut operations = vec![
        Operation::get("/", "A live page", Answer::Text("text/html; charset=utf-8")).access(Access::Open),
        Operation::get("/page.css", "The page's style", Answer::Text("text/css; charset=utf-8")).access(Access::Open),
        Operation::get("/page.js", "The page's script", Answer::Text("text/javascript; charset=utf-8"))
            .access(Access::Open),
        Operation::get("/openapi.json", "This description", Answer::Json("Object")).access(Access::Open),
        Operation::get("/v2/health/live", "Whether the server works", Answer::Json("Live")).access(Access::Health),
        Operation::get("/events", "Snapshots for the page", Answer::Text("text/event-stream")),
        Operation::get("/metrics", "Metrics for Prometheus", Answer::Text(crate::metrics::CONTENT_TYPE)),
        Operation::get("/v2", "The server's metadata", Answer::Json("ServerMetadata")),
        Operation::get("/v2/", "The server's metadata", Answer::Json("ServerMetadata")),
        Operation::get("/v2/models/stats", "Statistics of all models' requests", Answer::Json("Statistics")),
        Operation::post(
            "/v2/repository/index",
            "All models",
            Body::Optional("IndexRequest"),
            Answer::List("IndexEntry"),
        ),
        Operation::get("/v1/models", "The models for embeddings", Answer::Json("OpenAiModels")).access(Access::OpenAi),
        Operation::get("/v1/models/{model}", "A model for embeddings", Answer::Json("OpenAiModel"))
            .errors(MODEL)
            .access(Access::OpenAi),
        Operation::post(
            "/v1/embeddings",
            "Vectors of texts",
            Body::Required("EmbeddingsRequest"),
            Answer::Json("Embeddings"),
        )
        .errors(MODEL_BODY)
        .access(Access::OpenAi),
    ];
    for path in ["/v2/health/ready", "/health", "/healthz"] {
        let ready = Operation::get(path, "Whether models can be asked", Answer::Json("Ready"));
        operations.push(ready.access(Access::Health));
    }
    for (path, summary) in [("load", "Loads a model from its files"), ("unload", "Makes a model unavailable")] {
        let path = format!("/v2/repository/models/{{model}}/{path}");
        operations.push(
            Operation::post(path, summary, Body::Optional("LoadRequest"), Answer::Json("Object"))
                .errors(&[400, 403, 404, 408, 413, 415]),
        );
    }
    for model in ["/v2/models/{model}", "/v2/models/{model}/versions/{version}"] {
        let get = |path: &str, summary, schema| {
            Operation::get(format!("{model}{path}"), summary, Answer::Json(schema)).errors(MODEL)
        };
        operations.extend([
            get("", "A model's inputs and outputs", "ModelMetadata"),
            get("/ready", "Whether a model can be asked", "ModelReady"),
            get("/config", "A model's configuration", "Object"),
            get("/stats", "Statistics of a model's requests", "Statistics"),
            Operation::post(format!("{model}/infer"), "Asks a model", Body::Inference, Answer::Inference).errors(INFER),
        ]);
    }
    for (kind, status, registration) in
        [("system", "SystemRegion", "SystemRegistration"), ("cuda", "CudaRegion", "CudaRegistration")]
    {
        let path = format!("/v2/{kind}sharedmemory");
        let region = format!("{path}/region/{{region}}");
        operations.extend([
            Operation::get(format!("{path}/status"), "All regions", Answer::List(status)).errors(&[403]),
            Operation::get(format!("{region}/status"), "A region", Answer::List(status)).errors(&[400, 403, 404]),
            Operation::post(format!("{path}/unregister"), "Forgets all regions", Body::None, Answer::Empty)
                .errors(&[403]),
            Operation::post(format!("{region}/unregister"), "Forgets a region", Body::None, Answer::Empty)
                .errors(&[400, 403]),
            Operation::post(
                format!("{region}/register"),
                "Names memory in which tensors may lie",
                Body::Required(registration),
                Answer::Empty,
            )
            .errors(&[400, 403, 408, 409, 413, 415]),
        ]);
    }
    operations
}

/// Returns the schemas of bodies. A field that may be null may also be absent.
fn schemas() -> Value {
    let datatypes = Datatype::ALL.map(Datatype::name);
    let text = json!({ "type": "string" });
    let count = json!({ "type": "integer", "minimum": 0, "maximum": u64::MAX });
    let size = json!({ "type": "integer", "minimum": 1, "maximum": i64::MAX });
    let maybe = |kind: &str| json!({ "type": [kind, "null"] });
    let maybe_count = json!({ "type": ["integer", "null"], "minimum": 0, "maximum": u64::MAX });
    let list = |items: &Value| json!({ "type": "array", "items": items });
    let object = |properties: Value, required: &[&str]| json!({ "type": "object", "properties": properties, "required": required });
    let shape = json!({ "type": "array", "items": { "type": "integer", "minimum": 0, "maximum": i64::MAX } });
    let span = [("region", maybe("string")), ("offset", maybe_count.clone()), ("byte_size", maybe_count.clone())];
    let with_span = |mut properties: Value| {
        for (name, schema) in &span {
            properties[format!("shared_memory_{name}")] = schema.clone();
        }
        json!({ "type": ["object", "null"], "properties": properties })
    };
    let tensor = object(
        json!({
            "name": text,
            "datatype": { "enum": datatypes },
            "shape": shape,
            "parameters": with_span(json!({ "binary_data_size": maybe_count })),
            "data": { "type": ["array", "null"], "description": "The elements, flat or nested like the shape" },
        }),
        &["name", "datatype", "shape"],
    );
    let wanted =
        object(json!({ "name": text, "parameters": with_span(json!({ "binary_data": maybe("boolean") })) }), &["name"]);
    let parameters = json!({
        "type": ["object", "null"],
        "properties": { "binary_data_output": maybe("boolean"), "priority": maybe_count, "timeout": maybe_count },
    });
    let metadata = object(
        json!({ "name": text, "datatype": { "enum": datatypes }, "shape": list(&json!({ "type": "integer" })) }),
        &["name", "datatype", "shape"],
    );
    let model = object(
        json!({ "id": text, "object": { "const": "model" }, "created": count, "owned_by": text }),
        &["id", "object", "created", "owned_by"],
    );
    let tokens = list(&json!({ "type": "integer", "minimum": 0, "maximum": u32::MAX }));
    let input = json!({ "anyOf": [text, list(&text), tokens, list(&tokens)] });
    let vector = json!({ "anyOf": [list(&json!({ "type": "number" })), text] });
    let embedding = object(
        json!({ "object": { "const": "embedding" }, "index": count, "embedding": vector }),
        &["object", "index", "embedding"],
    );
    json!({
        "Object": { "type": "object" },
        "Error": object(json!({ "error": text }), &["error"]),
        "OpenAiError": object(
            json!({ "error": object(
                json!({ "message": text, "type": text, "param": maybe("string"), "code": maybe("string") }),
                &["message", "type", "param", "code"],
            ) }),
            &["error"],
        ),
        "Live": object(json!({ "live": { "type": "boolean" } }), &["live"]),
        "Ready": object(json!({ "ready": { "type": "boolean" }, "live": { "type": "boolean" } }), &["ready", "live"]),
        "ModelReady": object(json!({ "name": text, "ready": { "type": "boolean" } }), &["name", "ready"]),
        "ServerMetadata": object(
            json!({ "name": text, "version": text, "extensions": list(&text) }),
            &["name", "version", "extensions"],
        ),
        "ModelMetadata": object(
            json!({
                "name": text,
                "versions": list(&text),
                "platform": text,
                "inputs": list(&metadata),
                "outputs": list(&metadata),
            }),
            &["name", "versions", "platform", "inputs", "outputs"],
        ),
        "Statistics": object(json!({ "model_stats": list(&json!({ "type": "object" })) }), &["model_stats"]),
        "IndexRequest": object(json!({ "ready": { "type": "boolean" } }), &[]),
        "IndexEntry": object(
            json!({
                "name": text,
                "version": text,
                "state": { "enum": ["READY", "UNAVAILABLE", "LOADING", "UNLOADING"] },
                "reason": text,
            }),
            &["name", "version", "state", "reason"],
        ),
        "LoadRequest": object(json!({ "parameters": maybe("object") }), &[]),
        "InferRequest": object(
            json!({
                "id": maybe("string"),
                "parameters": parameters,
                "inputs": list(&tensor),
                "outputs": { "type": ["array", "null"], "items": wanted },
            }),
            &["inputs"],
        ),
        "InferResponse": object(
            json!({ "model_name": text, "model_version": text, "id": text, "outputs": list(&tensor) }),
            &["model_name", "outputs"],
        ),
        "OpenAiModel": model,
        "OpenAiModels": object(json!({ "object": { "const": "list" }, "data": list(&model) }), &["object", "data"]),
        "EmbeddingsRequest": object(
            json!({
                "model": text,
                "input": input,
                "encoding_format": { "enum": ["float", "base64", null] },
                "dimensions": { "type": ["integer", "null"], "minimum": 1, "maximum": i64::MAX },
            }),
            &["model", "input"],
        ),
        "Embeddings": object(
            json!({
                "object": { "const": "list" },
                "data": list(&embedding),
                "model": text,
                "usage": object(json!({ "prompt_tokens": count, "total_tokens": count }), &["prompt_tokens", "total_tokens"]),
            }),
            &["object", "data", "model", "usage"],
        ),
        "SystemRegion": object(
            json!({ "name": text, "key": text, "offset": count, "byte_size": count }),
            &["name", "key", "offset", "byte_size"],
        ),
        "SystemRegistration": object(json!({ "key": text, "offset": count, "byte_size": size }), &["key", "byte_size"]),
        "CudaRegion": object(
            json!({ "name": text, "device_id": count, "byte_size": count }),
            &["name", "device_id", "byte_size"],
        ),
        "CudaRegistration": object(
            json!({
                "raw_handle": object(json!({ "b64": text }), &["b64"]),
                "device_id": { "type": "integer", "minimum": i64::MIN, "maximum": i64::MAX },
                "byte_size": size,
            }),
            &["raw_handle", "device_id", "byte_size"],
        ),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::routes;
    use super::*;

    #[test]
    fn the_routes_and_the_description_have_the_same_paths() {
        let document = document(true);
        let described: BTreeSet<String> = document["paths"].as_object().unwrap().keys().cloned().collect();
        assert_eq!(described, routes::paths());
    }

    #[test]
    fn every_schema_that_is_named_is_there() {
        let document = document(false);
        let text = document.to_string();
        let named: BTreeSet<&str> =
            text.split("#/components/schemas/").skip(1).filter_map(|rest| rest.split('"').next()).collect();
        let known: BTreeSet<&str> =
            document["components"]["schemas"].as_object().unwrap().keys().map(|key| &**key).collect();
        assert_eq!(named, known);
    }
}
