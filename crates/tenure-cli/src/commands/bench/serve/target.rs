//! The models of a server, and a request for each.

use anyhow::Context as _;
use bytes::Bytes;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tenure_serve::protocol::{Datatype, Encoded, Encoding, InferRequest, InferResponse, Tensor, Wanted};

use super::client::{HttpAnswer, HttpClient};

/// The size used for a dimension that a model leaves free, except the first, which is 1.
const FREE: usize = 16;

/// A server, and the models to ask.
pub(super) struct ServerUnderTest {
    pub(super) client: HttpClient,
    pub(super) models: Vec<Asked>,
}

/// A model, and its request.
pub(super) struct Asked {
    pub(super) name: String,
    path: String,
    sent: Encoded,
    /// The bytes of its expected outputs, if they are known.
    expected: Option<Vec<Bytes>>,
}

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestOutcome {
    Answered,
    /// The answer was not the expected one.
    Wrong,
    /// The server refused because it has too much to do.
    Refused,
    Failed,
}

#[derive(Deserialize)]
struct Named {
    name: String,
}

#[derive(Deserialize)]
struct Metadata {
    inputs: Vec<Input>,
}

#[derive(Deserialize)]
struct Input {
    name: String,
    datatype: Datatype,
    shape: Vec<i64>,
}

impl ServerUnderTest {
    /// Returns the models that are ready at `url`, at most `count` of them.
    pub(super) async fn at(url: &str, count: Option<usize>) -> anyhow::Result<Self> {
        let client = HttpClient::new(url)?;
        let body = Encoded { body: Bytes::from_static(br#"{"ready": true}"#), json_bytes: None };
        let index: Vec<Named> = read(&client.post("/v2/repository/index", &body).await?)?;
        let mut models = Vec::new();
        for Named { name } in index.into_iter().take(count.unwrap_or(usize::MAX)) {
            let metadata: Metadata = read(&client.get(&format!("/v2/models/{name}")).await?)?;
            let inputs = metadata.inputs.into_iter().map(Input::made).collect::<anyhow::Result<_>>()?;
            models.push(Asked::new(name, inputs, Encoding::Binary, None)?);
        }
        anyhow::ensure!(!models.is_empty(), "{url}: no model is ready there");
        Ok(Self { client, models })
    }
}

impl Asked {
    /// Makes a model with its inputs, and its expected answer if that is known.
    pub(super) fn new(
        name: String,
        inputs: Vec<Tensor>,
        encoding: Encoding,
        expected: Option<Vec<Bytes>>,
    ) -> anyhow::Result<Self> {
        let wanted = Wanted { encoding, ..Wanted::default() };
        let sent = InferRequest { inputs, wanted, ..InferRequest::default() }.encode(encoding)?;
        Ok(Self { path: format!("/v2/models/{name}/infer"), name, sent, expected })
    }

    /// Sends the request and returns the server's answer.
    pub(super) async fn ask(&self, client: &HttpClient) -> anyhow::Result<HttpAnswer> {
        client.post(&self.path, &self.sent).await
    }

    /// Classifies an answer.
    pub(super) fn outcome(&self, answer: HttpAnswer) -> RequestOutcome {
        match answer.status.as_u16() {
            200 => {}
            429 | 503 => return RequestOutcome::Refused,
            _ => return RequestOutcome::Failed,
        }
        let Ok(answer) = InferResponse::parse(answer.body, answer.json_bytes) else { return RequestOutcome::Wrong };
        if self.expected.as_ref().is_none_or(|expected| answer.outputs.iter().map(Tensor::bytes).eq(expected)) {
            RequestOutcome::Answered
        } else {
            RequestOutcome::Wrong
        }
    }
}

impl Input {
    /// Makes a tensor that most models accept: of ones, or of strings.
    fn made(self) -> anyhow::Result<Tensor> {
        let Self { name, datatype, shape } = self;
        let size = |(place, size): (usize, &i64)| usize::try_from(*size).unwrap_or(if place == 0 { 1 } else { FREE });
        let shape: Vec<usize> = shape.iter().enumerate().map(size).collect();
        let one: &[u8] = match datatype {
            Datatype::Fp64 => &1f64.to_le_bytes(),
            Datatype::Fp32 => &1f32.to_le_bytes(),
            Datatype::Fp16 => &[0, 0x3c],
            Datatype::Bf16 => &[0x80, 0x3f],
            Datatype::Bytes => b"\x01\0\0\0a",
            _ => &1u64.to_le_bytes()[..datatype.size().unwrap_or(1)],
        };
        let bytes = one.repeat(shape.iter().product());
        Ok(Tensor::new(name, datatype, shape, bytes)?)
    }
}

/// Parses the JSON of an answer.
fn read<T: DeserializeOwned>(answer: &HttpAnswer) -> anyhow::Result<T> {
    let text = String::from_utf8_lossy(&answer.body);
    anyhow::ensure!(answer.status.is_success(), "the server answered {}: {text}", answer.status);
    serde_json::from_slice(&answer.body).with_context(|| format!("the server's answer is not the protocol's: {text}"))
}
