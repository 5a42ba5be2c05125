//! OpenAI's API: embeddings of texts, and the list of models.

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use base64::prelude::{BASE64_STANDARD, Engine};
use half::{bf16, f16};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::body::receive;
use super::route::{Route, Sharing, json, object};
use crate::metrics::RequestOutcome;
use crate::protocol::{
    Datatype, Encoding, InferRequest, InferResponse, ModelMetadata, ModelState, Tensor, TensorMetadata, Wanted,
};
use crate::service::shared::{Ending, ServerShared};
use crate::service::work::{NUMBER_BYTES, aside};
use crate::service::{ServeError, Texts};

/// The largest number of texts in a request, which is OpenAI's own limit.
const MAX_INPUTS: usize = 2048;

/// The largest number of tokens, padding included, in a request to a model with several rows.
const MAX_FILLED: usize = 1 << 16;

const INPUT: &str = "input must be a text, texts, tokens or lists of tokens";

pub(super) fn routes() -> [Route; 3] {
    [
        ("/v1/models".into(), get(models)),
        ("/v1/models/{model}".into(), get(model)),
        ("/v1/embeddings".into(), post(embeddings)),
    ]
}

/// An error in OpenAI's form.
pub(super) struct Refused {
    error: ServeError,
    /// The name of the invalid parameter.
    param: Option<&'static str>,
}

impl From<ServeError> for Refused {
    fn from(error: ServeError) -> Self {
        let param = matches!(error, ServeError::UnknownModel { .. }).then_some("model");
        Self { error, param }
    }
}

impl Refused {
    fn of(param: &'static str, message: impl Into<String>) -> Self {
        Self { error: ServeError::Malformed(message.into()), param: Some(param) }
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let Self { error, param } = self;
        let status = error.status();
        let code = match &error {
            ServeError::UnknownModel { .. } => Some("model_not_found"),
            ServeError::Token => Some("invalid_api_key"),
            _ => None,
        };
        let kind = if status.is_server_error() { "server_error" } else { "invalid_request_error" };
        let message = error.message();
        let body = serde_json::json!({ "error": { "message": message, "type": kind, "param": param, "code": code } });
        let mut response = error.into_response();
        response.headers_mut().remove(header::CONTENT_LENGTH);
        *response.body_mut() = body.to_string().into();
        response
    }
}

#[derive(Serialize)]
struct ModelObject {
    id: String,
    object: &'static str,
    /// The creation time, which is unknown.
    created: u64,
    owned_by: &'static str,
}

fn model_object(id: String) -> ModelObject {
    ModelObject { id, object: "model", created: 0, owned_by: "tenure" }
}

async fn models(State(shared): Sharing) -> Response {
    let ready = shared.service.index().into_iter().filter(|entry| entry.state == ModelState::Ready);
    let usable = ready.filter(|entry| encoder(&shared, &entry.name).is_ok());
    let data: Vec<ModelObject> = usable.map(|entry| model_object(entry.name)).collect();
    json(&serde_json::json!({ "object": "list", "data": data }))
}

async fn model(State(shared): Sharing, Path(name): Path<String>) -> Result<Response, Refused> {
    encoder(&shared, &name)?;
    Ok(json(&model_object(name)))
}

/// Returns how a model returns embeddings.
///
/// # Errors
/// There is no such model, or this API cannot use it.
fn encoder(shared: &ServerShared, model: &str) -> Result<Encoder, Refused> {
    Encoder::of(&*shared.service.metadata(model, None)?)
}

/// A request for embeddings. Other fields are allowed and ignored.
#[derive(Deserialize)]
struct EmbeddingsRequest {
    model: String,
    input: Box<RawValue>,
    encoding_format: Option<String>,
    dimensions: Option<i64>,
}

/// The inputs to embed.
enum Input {
    Texts(Vec<String>),
    Tokens(Vec<Vec<u32>>),
}

impl Input {
    fn parse(json: &str) -> Result<Self, Refused> {
        let first = json.strip_prefix('[').and_then(|rest| rest.trim_start().chars().next());
        let input = match first {
            None => serde_json::from_str(json).map(|text| Self::Texts(vec![text])),
            Some('"' | ']') => serde_json::from_str(json).map(Self::Texts),
            Some('[') => serde_json::from_str(json).map(Self::Tokens),
            Some(_) => serde_json::from_str(json).map(|tokens| Self::Tokens(vec![tokens])),
        };
        let input = input.map_err(|error: serde_json::Error| Refused::of("input", format!("{INPUT}: {error}")))?;
        let (count, has_empty) = match &input {
            Self::Texts(texts) => (texts.len(), texts.iter().any(String::is_empty)),
            Self::Tokens(lists) => (lists.len(), lists.iter().any(Vec::is_empty)),
        };
        if count == 0 || has_empty {
            return Err(Refused::of("input", "input has nothing, or an empty text or list, which has no vector"));
        }
        if count > MAX_INPUTS {
            return Err(Refused::of("input", format!("input has {count} texts, and {MAX_INPUTS} are allowed")));
        }
        Ok(input)
    }
}

/// The encoding of vectors.
#[derive(Clone, Copy)]
enum VectorFormat {
    Float,
    Base64,
}

impl VectorFormat {
    fn parse(name: Option<&str>) -> Result<Self, Refused> {
        match name {
            None | Some("float") => Ok(Self::Float),
            Some("base64") => Ok(Self::Base64),
            Some(other) => {
                let message = format!("encoding_format is {other:?}: \"float\" and \"base64\" are known");
                Err(Refused::of("encoding_format", message))
            }
        }
    }

    fn write(self, vector: Vec<f32>) -> Vector {
        match self {
            Self::Float => Vector::Float(vector),
            Self::Base64 => {
                let bytes: Vec<u8> = vector.into_iter().flat_map(f32::to_le_bytes).collect();
                Vector::Base64(BASE64_STANDARD.encode(bytes))
            }
        }
    }
}

#[derive(Serialize)]
#[serde(untagged)]
enum Vector {
    Float(Vec<f32>),
    Base64(String),
}

#[derive(Serialize)]
struct Embedding {
    object: &'static str,
    index: usize,
    embedding: Vector,
}

#[derive(Serialize)]
struct Usage {
    prompt_tokens: usize,
    total_tokens: usize,
}

#[derive(Serialize)]
struct Embeddings {
    object: &'static str,
    data: Vec<Embedding>,
    model: String,
    usage: Usage,
}

async fn embeddings(State(shared): Sharing, headers: HeaderMap, body: Body) -> Result<Response, Refused> {
    let mut ending = Ending::new(shared.service.metrics(), Instant::now());
    let answer = answer(&shared, &headers, body, &mut ending.model).await;
    ending.outcome = answer.as_ref().map_or_else(|refused| refused.error.outcome(), |_| RequestOutcome::Answered);
    answer
}

/// Answers a request for embeddings. Sets `known` to the model's name once the model is found.
async fn answer(
    shared: &ServerShared,
    headers: &HeaderMap,
    body: Body,
    known: &mut String,
) -> Result<Response, Refused> {
    let mut share = shared.share();
    let body = receive(headers, body, &shared.limits, &mut share).await?;
    let body_bytes = body.len();
    let request: EmbeddingsRequest = aside(body_bytes, move || object(&body, "request for embeddings")).await?;
    let metadata = shared.service.metadata(&request.model, None)?;
    known.clone_from(&request.model);
    let format = VectorFormat::parse(request.encoding_format.as_deref())?;
    let encoder = Encoder::of(&metadata)?;
    let texts = shared.service.texts(&request.model).await?;
    let max_rows = texts.max_rows.max(1);
    let takes_texts = matches!(encoder.takes, Takes::Texts(_));
    // Tokenizing takes longer than reading JSON.
    let rows = aside(body_bytes.saturating_mul(64), move || Ok(rows(&request.input, takes_texts, &texts))).await??;
    let prompt_tokens = rows.tokens();
    let vectors = vectors(shared, &metadata, &encoder, &rows, max_rows).await?;
    let model = request.model;
    let cost = vectors.iter().map(|vector| vector.len() * NUMBER_BYTES).sum();
    aside(cost, move || Ok(encode(vectors, request.dimensions, format, model, prompt_tokens))).await?
}

fn encode(
    vectors: Vec<Vec<f32>>,
    dimensions: Option<i64>,
    format: VectorFormat,
    model: String,
    prompt_tokens: usize,
) -> Result<Response, Refused> {
    let vectors = vectors.into_iter().map(|vector| shortened(vector, dimensions)).collect::<Result<Vec<_>, _>>()?;
    let data = vectors.into_iter().enumerate().map(|(index, vector)| Embedding {
        object: "embedding",
        index,
        embedding: format.write(vector),
    });
    let usage = Usage { prompt_tokens, total_tokens: prompt_tokens };
    Ok(json(&Embeddings { object: "list", data: data.collect(), model, usage }))
}

/// Truncates a vector to its first `dimensions` numbers and normalizes it to length 1 again.
fn shortened(mut vector: Vec<f32>, dimensions: Option<i64>) -> Result<Vec<f32>, Refused> {
    if !vector.iter().all(|number| number.is_finite()) {
        return Err(ServeError::Failed("the model answered infinite numbers, or none".into()).into());
    }
    let Some(dimensions) = dimensions else { return Ok(vector) };
    let width = vector.len();
    let Some(kept) = usize::try_from(dimensions).ok().filter(|kept| (1..=width).contains(kept)) else {
        let message = format!("dimensions is {dimensions}: the model's vectors have {width}, and 1 is the least");
        return Err(Refused::of("dimensions", message));
    };
    if kept < width {
        vector.truncate(kept);
        let norm = vector.iter().map(|number| f64::from(*number).powi(2)).sum::<f64>().sqrt();
        // A zero vector stays zero.
        vector.iter_mut().filter(|_| norm > 0.0).for_each(|number| *number = (f64::from(*number) / norm) as f32);
    }
    Ok(vector)
}

/// The rows that are sent to a model: one for each text.
enum Rows {
    Texts(Vec<String>),
    Tokens(Vec<Vec<u32>>),
}

impl Rows {
    /// Returns the number of tokens, or 0 if it is unknown.
    fn tokens(&self) -> usize {
        match self {
            Self::Texts(_) => 0,
            Self::Tokens(lists) => lists.iter().map(Vec::len).sum(),
        }
    }
}

fn rows(input: &RawValue, takes_texts: bool, texts: &Texts) -> Result<Rows, Refused> {
    match (Input::parse(input.get())?, &texts.tokenizer) {
        (Input::Texts(list), _) if takes_texts => Ok(Rows::Texts(list)),
        (Input::Tokens(_), _) if takes_texts => Err(Refused::of("input", "the model takes texts, and no tokens")),
        (Input::Tokens(lists), _) => Ok(Rows::Tokens(lists)),
        (Input::Texts(list), Some(tokenizer)) => {
            let tokens = |text: &String| tokenizer(text).map_err(|reason| Refused::of("input", reason));
            Ok(Rows::Tokens(list.iter().map(tokens).collect::<Result<_, _>>()?))
        }
        (Input::Texts(_), None) => {
            let message = "the model takes tokens, and has no tokenizer.json in its folder: send lists of tokens";
            Err(Refused::of("input", message))
        }
    }
}

/// A model that returns embeddings.
struct Encoder {
    takes: Takes,
    output: String,
}

/// The inputs that the model takes.
enum Takes {
    Texts(TensorMetadata),
    Tokens(Vec<TensorMetadata>),
}

impl Encoder {
    /// Recognizes a model whose only output is a matrix, and which takes texts, or tokens as Hugging Face's encoders
    /// do. A classifier's output, called `logits`, is refused.
    fn of(metadata: &ModelMetadata) -> Result<Self, Refused> {
        let other = || Refused::of("model", format!("the model {:?} answers no vectors of texts", metadata.name));
        let [output] = &metadata.outputs[..] else { return Err(other()) };
        if reader(output.datatype).is_none() || output.shape.len() != 2 || output.name == "logits" {
            return Err(other());
        }
        let takes = match &metadata.inputs[..] {
            [input] if Self::has_texts(input) => Takes::Texts(input.clone()),
            inputs if inputs.iter().any(|input| input.name == "input_ids") && inputs.iter().all(Self::has_tokens) => {
                Takes::Tokens(inputs.to_vec())
            }
            _ => return Err(other()),
        };
        Ok(Self { takes, output: output.name.clone() })
    }

    fn has_texts(input: &TensorMetadata) -> bool {
        input.datatype == Datatype::Bytes && matches!(input.shape[..], [-1] | [-1, 1 | -1])
    }

    fn has_tokens(input: &TensorMetadata) -> bool {
        input.shape == [-1, -1]
            && matches!(input.datatype, Datatype::Int64 | Datatype::Int32)
            && matches!(&*input.name, "input_ids" | "attention_mask" | "token_type_ids")
    }

    /// Returns the inputs for some rows, in the order of `places`.
    fn inputs(&self, rows: &Rows, places: &[usize]) -> Result<Vec<Tensor>, Refused> {
        match (&self.takes, rows) {
            (Takes::Texts(input), Rows::Texts(texts)) => {
                let texts: Vec<&str> = places.iter().map(|place| &*texts[*place]).collect();
                let tensor = Tensor::strings(&input.name, &texts).map_err(ServeError::Invalid)?;
                let shape = if input.shape.len() == 1 { vec![texts.len()] } else { vec![texts.len(), 1] };
                let tensor = Tensor::new(&input.name, Datatype::Bytes, shape, tensor.bytes().clone());
                Ok(vec![tensor.map_err(ServeError::Invalid)?])
            }
            (Takes::Tokens(inputs), Rows::Tokens(lists)) => {
                let lists: Vec<&[u32]> = places.iter().map(|place| &*lists[*place]).collect();
                let tensors = inputs.iter().map(|input| of_tokens(input, &lists));
                Ok(tensors.collect::<Result<_, _>>().map_err(ServeError::Invalid)?)
            }
            _ => Err(Refused::of("input", INPUT)),
        }
    }
}

/// Builds one token input, with each list padded to the longest.
fn of_tokens(input: &TensorMetadata, lists: &[&[u32]]) -> Result<Tensor, crate::protocol::ProtocolError> {
    let longest = lists.iter().map(|list| list.len()).max().unwrap_or(0);
    let mut bytes = Vec::new();
    for list in lists {
        for place in 0..longest {
            let value = match (&*input.name, list.get(place)) {
                ("input_ids", Some(token)) => i64::from(*token),
                ("attention_mask", Some(_)) => 1,
                _ => 0,
            };
            match input.datatype {
                // A token that does not fit becomes the largest number, beyond all vocabularies.
                Datatype::Int32 => bytes.extend(i32::try_from(value).unwrap_or(i32::MAX).to_le_bytes()),
                _ => bytes.extend(value.to_le_bytes()),
            }
        }
    }
    Tensor::new(&input.name, input.datatype, vec![lists.len(), longest], bytes)
}

/// Computes a vector for each row. Rows of similar length are computed together.
async fn vectors(
    shared: &ServerShared,
    metadata: &ModelMetadata,
    encoder: &Encoder,
    rows: &Rows,
    max_rows: usize,
) -> Result<Vec<Vec<f32>>, Refused> {
    let lengths: Vec<usize> = match rows {
        Rows::Texts(texts) => texts.iter().map(String::len).collect(),
        Rows::Tokens(lists) => lists.iter().map(Vec::len).collect(),
    };
    let mut places: Vec<usize> = (0..lengths.len()).collect();
    places.sort_by_key(|place| lengths[*place]);
    let mut vectors = vec![Vec::new(); places.len()];
    let mut rest = &places[..];
    while !rest.is_empty() {
        // A few long rows must not pad many short ones to their length.
        let more = rest
            .iter()
            .enumerate()
            .skip(1)
            .take_while(|(rows, place)| *rows < max_rows && (rows + 1) * lengths[**place] <= MAX_FILLED);
        let (places, others) = rest.split_at(1 + more.count());
        rest = others;
        let inputs = encoder.inputs(rows, places)?;
        // No text of the numbers is written or read.
        let wanted = Wanted { encoding: Encoding::Binary, ..Wanted::default() };
        let request = InferRequest { model: metadata.name.clone(), inputs, wanted, ..Default::default() };
        metadata.check(&request).map_err(ServeError::Invalid)?;
        let response = shared.service.infer(request).await?;
        let found = split(&response, &encoder.output, places.len())?;
        places.iter().zip(found).for_each(|(place, vector)| vectors[*place] = vector);
    }
    Ok(vectors)
}

/// Splits an answer into its rows.
fn split(response: &InferResponse, output: &str, rows: usize) -> Result<Vec<Vec<f32>>, ServeError> {
    let other = || ServeError::Failed(format!("the model did not answer {rows} vectors as {output:?}"));
    let output = response.outputs.iter().find(|found| found.name() == output).ok_or_else(other)?;
    if output.shape().first() != Some(&rows) || output.bytes().is_empty() {
        return Err(other());
    }
    let numbers = reader(output.datatype()).ok_or_else(other)?;
    Ok(output.bytes().chunks(output.bytes().len() / rows).map(numbers).collect())
}

/// A function that reads the numbers of a vector.
type ReadVector = fn(&[u8]) -> Vec<f32>;

/// Returns the reader for vectors of a datatype, or `None` if the datatype is not supported.
fn reader(datatype: Datatype) -> Option<ReadVector> {
    Some(match datatype {
        Datatype::Fp32 => |bytes| bytes.as_chunks().0.iter().map(|number| f32::from_le_bytes(*number)).collect(),
        Datatype::Fp16 => {
            |bytes| bytes.as_chunks().0.iter().map(|number| f16::from_le_bytes(*number).to_f32()).collect()
        }
        Datatype::Bf16 => {
            |bytes| bytes.as_chunks().0.iter().map(|number| bf16::from_le_bytes(*number).to_f32()).collect()
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortened_vector_has_length_one_again() {
        let shortened = |dimensions| shortened(vec![0.6, 0.8, 0.0], dimensions).ok();
        assert_eq!(shortened(None), Some(vec![0.6, 0.8, 0.0]));
        assert_eq!(shortened(Some(1)), Some(vec![1.0]));
        assert!([0, -1, 4].map(Some).into_iter().all(|wrong| shortened(wrong).is_none()));
    }
}
