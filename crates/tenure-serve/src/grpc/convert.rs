//! Conversions between messages and the protocol's requests and answers.

use std::collections::HashSet;
use std::time::Duration;

use bytes::{Buf, Bytes};
use prost::encoding::{WireType, decode_key, decode_varint, skip_field};
use prost::{DecodeError, Message};

use super::contents;
use super::messages::{
    InferParameter, InferRequestedOutput, InferTensor, InferTensorContents, ModelInferRequest, ModelInferResponse,
    ParameterChoice, Parameters,
};
use crate::protocol::{
    Datatype, Encoding, InferRequest, InferResponse, ProtocolError, SharedTensor, Span, Tensor, TensorError, Wanted,
    WantedOutput, shape,
};
use crate::service::ServeError;

/// Bytes of memory that a field of a request, and a string in its contents, may take beyond their own bytes.
const FIELD_BYTES: usize = 384;
const STRING_BYTES: usize = 32;

/// Bytes that the uncounted fields of a request may take.
const FREE_BYTES: usize = 64 << 10;

/// Decodes a message.
///
/// # Errors
/// The bytes are not such a message.
pub(super) fn decode<M: Message + Default>(bytes: Bytes) -> Result<M, ServeError> {
    M::decode(bytes).map_err(|error| malformed(&error))
}

fn malformed(error: &DecodeError) -> ServeError {
    ServeError::Malformed(format!("not a message of the protocol: {error}"))
}

/// Returns how many bytes of memory a request takes beyond its own when it is decoded. A field of two bytes may become
/// a tensor.
///
/// # Errors
/// The bytes are not a message.
pub(super) fn decoded_bytes(request: &[u8]) -> Result<usize, ServeError> {
    let bytes = nested_bytes(request, 0).map_err(|error| malformed(&error))?;
    Ok(bytes.saturating_sub(FREE_BYTES))
}

fn nested_bytes(mut message: &[u8], depth: u32) -> Result<usize, DecodeError> {
    let mut sum = 0usize;
    while message.has_remaining() {
        let (tag, wire_type) = decode_key(&mut message)?;
        if wire_type != WireType::LengthDelimited {
            skip_field(wire_type, tag, &mut message, Default::default())?;
            continue;
        }
        let length = usize::try_from(decode_varint(&mut message)?).ok();
        let Some((field, rest)) = length.and_then(|length| message.split_at_checked(length)) else {
            // The decoder reports the error later.
            return Ok(sum);
        };
        message = rest;
        sum = sum.saturating_add(if depth < 2 { FIELD_BYTES } else { STRING_BYTES });
        // Fields 5 and 6 are inputs and outputs; field 5 of an input is its contents.
        if matches!((depth, tag), (0, 5 | 6) | (1, 5)) {
            sum = sum.saturating_add(nested_bytes(field, depth + 1)?);
        }
    }
    Ok(sum)
}

/// Returns a string unless it is empty; an absent string of a message is empty.
pub(super) fn said(string: String) -> Option<String> {
    Some(string).filter(|string| !string.is_empty())
}

/// The form in which an answer's tensors are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// All tensors as raw bytes.
    Raw,
    /// All tensors in their `contents`, unless one of them has a type without contents.
    Contents,
}

/// Converts a message to a request, and returns the form of its answer, which is the form of its inputs.
///
/// # Errors
/// The message is not a valid request.
pub(super) fn infer_request(message: ModelInferRequest) -> Result<(InferRequest, Form), ServeError> {
    let ModelInferRequest { model_name, model_version, id, parameters, inputs, outputs, raw_input_contents } = message;
    if parameters.contains_key("sequence_id") {
        return Err(ServeError::Invalid(ProtocolError::Unsupported {
            what: "a sequence of requests",
            instead: "leave sequence_id out, and send what a request needs with it: models keep no state",
        }));
    }
    let has_contents =
        |input: &InferTensor| input.contents.as_ref().is_some_and(|contents| !contents::is_empty(contents));
    let form = if inputs.iter().any(has_contents) { Form::Contents } else { Form::Raw };
    let (here, shared_inputs) = tensors(inputs, raw_input_contents, form)?;
    let request = InferRequest {
        model: model_name,
        version: said(model_version),
        id: said(id),
        priority: number(&parameters, "priority")?.unwrap_or(0),
        timeout: number(&parameters, "timeout")?.filter(|us| *us > 0).map(Duration::from_micros),
        inputs: here,
        shared_inputs,
        wanted: wanted(outputs)?,
    };
    Ok((request, form))
}

/// Returns a numeric parameter if it is present.
fn number(parameters: &Parameters, name: &str) -> Result<Option<u64>, ServeError> {
    let Some(InferParameter { choice }) = parameters.get(name) else { return Ok(None) };
    let number = match choice {
        Some(ParameterChoice::Uint64(number)) => Some(*number),
        Some(ParameterChoice::Int64(number)) => u64::try_from(*number).ok(),
        _ => None,
    };
    number.map(Some).ok_or_else(|| ServeError::Malformed(format!("the parameter {name:?} is not a number from 0 up")))
}

/// Returns the span of shared memory that a tensor's parameters name, if they name one.
fn span(tensor: &str, parameters: &Parameters) -> Result<Option<Span>, ServeError> {
    let region = match parameters.get("shared_memory_region") {
        None => None,
        Some(InferParameter { choice: Some(ParameterChoice::String(region)) }) => Some(region.clone()),
        Some(_) => return Err(ServeError::Malformed("the parameter \"shared_memory_region\" is not a string".into())),
    };
    let offset = number(parameters, "shared_memory_offset")?;
    let byte_size = number(parameters, "shared_memory_byte_size")?;
    Span::of(region, offset, byte_size).map_err(|error| ServeError::Invalid(error.of(tensor)))
}

/// Returns the tensors whose elements are in the message, and those whose elements are in shared memory.
fn tensors(
    inputs: Vec<InferTensor>,
    raw: Vec<Bytes>,
    form: Form,
) -> Result<(Vec<Tensor>, Vec<SharedTensor>), ServeError> {
    let mut names = HashSet::new();
    if let Some(twice) = inputs.iter().find(|input| !names.insert(&*input.name)) {
        return Err(ServeError::Invalid(ProtocolError::Twice(twice.name.clone())));
    }
    let spans: Vec<_> =
        inputs.iter().map(|input| span(&input.name, &input.parameters)).collect::<Result<_, ServeError>>()?;
    let here_count = spans.iter().filter(|span| span.is_none()).count();
    if !raw.is_empty() && (raw.len() != here_count || form == Form::Contents) {
        return Err(ServeError::Invalid(ProtocolError::RawContents { inputs: here_count, raw: raw.len() }));
    }
    let mut here = Vec::with_capacity(here_count);
    let mut shared = Vec::new();
    let mut raw = raw.into_iter();
    for (input, span) in inputs.into_iter().zip(spans) {
        match span {
            Some(span) => shared.push(shared_tensor(input, span).map_err(ServeError::Invalid)?),
            None => here.push(tensor(input, raw.next()).map_err(ServeError::Invalid)?),
        }
    }
    Ok((here, shared))
}

fn tensor(input: InferTensor, raw: Option<Bytes>) -> Result<Tensor, ProtocolError> {
    let InferTensor { name, datatype, shape, contents, .. } = input;
    let (datatype, shape) = typed(&datatype, shape).map_err(|error| error.of(&name))?;
    let bytes = match (raw, contents) {
        (Some(raw), _) => raw,
        (None, Some(contents)) => contents::read(contents, datatype).map_err(|error| error.of(&name))?.into(),
        (None, None) => Bytes::new(),
    };
    Tensor::new(name, datatype, shape, bytes)
}

fn shared_tensor(input: InferTensor, span: Span) -> Result<SharedTensor, ProtocolError> {
    let InferTensor { name, datatype, shape, contents, .. } = input;
    if contents.is_some_and(|contents| !contents::is_empty(&contents)) {
        return Err(TensorError::BothContents.of(&name));
    }
    let (datatype, shape) = typed(&datatype, shape).map_err(|error| error.of(&name))?;
    Ok(SharedTensor { name, datatype, shape, span })
}

fn typed(datatype: &str, sizes: Vec<i64>) -> Result<(Datatype, Vec<usize>), TensorError> {
    Ok((datatype.parse()?, shape(sizes)?))
}

fn wanted(outputs: Vec<InferRequestedOutput>) -> Result<Wanted, ServeError> {
    let mut names = HashSet::new();
    if let Some(twice) = outputs.iter().find(|output| !names.insert(&*output.name)) {
        return Err(ServeError::Invalid(ProtocolError::Twice(twice.name.clone())));
    }
    // Every type can be sent.
    Ok(Wanted {
        outputs: outputs.into_iter().map(wanted_output).collect::<Result<_, _>>()?,
        encoding: Encoding::Binary,
    })
}

fn wanted_output(InferRequestedOutput { name, parameters }: InferRequestedOutput) -> Result<WantedOutput, ServeError> {
    if parameters.contains_key("classification") {
        return Err(ServeError::Invalid(ProtocolError::Unsupported {
            what: "classification of an output",
            instead: "ask for the output itself: it has the scores, and labels are not known here",
        }));
    }
    let span = span(&name, &parameters)?;
    Ok(WantedOutput { name, encoding: None, span })
}

/// Converts an answer to a message with the wanted outputs. Outputs in shared memory have no elements in it.
///
/// # Errors
/// A wanted output is missing.
pub(super) fn infer_response(
    response: &InferResponse,
    wanted: &Wanted,
    form: Form,
) -> Result<ModelInferResponse, ServeError> {
    let outputs = response.wanted(wanted);
    let outputs =
        outputs.map_err(|error| ServeError::Failed(format!("the server answered something else: {error}")))?;
    let is_sent = |output: &Tensor| wanted.span(output.name()).is_none();
    let contents = match form {
        Form::Raw => None,
        Form::Contents => outputs
            .iter()
            .map(|(output, _)| if is_sent(output) { contents::write(output).map(Some) } else { Some(None) })
            .collect::<Option<Vec<Option<InferTensorContents>>>>(),
    };
    // There is one entry for each output, since clients count them.
    let raw_output_contents = match &contents {
        None => outputs
            .iter()
            .map(|(output, _)| if is_sent(output) { output.bytes().clone() } else { Bytes::new() })
            .collect(),
        Some(_) => Vec::new(),
    };
    let mut contents = contents.into_iter().flatten();
    let tensor = |(output, _): &(&Tensor, Encoding)| InferTensor {
        name: output.name().into(),
        datatype: output.datatype().name().into(),
        // No tensor in memory has a longer dimension.
        shape: output.shape().iter().map(|&size| i64::try_from(size).unwrap_or(i64::MAX)).collect(),
        parameters: Parameters::new(),
        contents: contents.next().flatten(),
    };
    Ok(ModelInferResponse {
        model_name: response.model.clone(),
        model_version: response.version.clone().unwrap_or_default(),
        id: response.id.clone().unwrap_or_default(),
        parameters: Parameters::new(),
        outputs: outputs.iter().map(tensor).collect(),
        raw_output_contents,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_with_half_precision_is_bytes_however_it_was_asked_for() {
        let tensor = |name, datatype| Tensor::new(name, datatype, vec![1], vec![1, 0]).unwrap();
        let outputs = vec![tensor("a", Datatype::Int16), tensor("b", Datatype::Bf16)];
        let response = InferResponse { outputs, ..InferResponse::default() };
        let both = infer_response(&response, &Wanted::default(), Form::Contents).unwrap();
        assert_eq!(both.raw_output_contents, [&[1, 0][..]; 2]);
        assert!(both.outputs.iter().all(|output| output.contents.is_none()));
        let wanted = vec![WantedOutput { name: "a".into(), encoding: None, span: None }];
        let wanted = Wanted { outputs: wanted, ..Wanted::default() };
        let one = infer_response(&response, &wanted, Form::Contents).unwrap();
        assert_eq!(one.outputs[0].contents.as_ref().unwrap().ints, [1]);
        assert!(one.raw_output_contents.is_empty() && one.outputs.len() == 1);
    }

    #[test]
    fn messages_that_grow_in_memory_are_counted() {
        let inputs = vec![InferTensor::default(); 1 << 20];
        let request = ModelInferRequest { inputs, ..ModelInferRequest::default() };
        let bytes = request.encode_to_vec();
        assert_eq!(bytes.len(), 2 << 20);
        assert!(decoded_bytes(&bytes).unwrap() > size_of::<InferTensor>() << 20);
        let raw_input_contents = vec![Bytes::from_static(&[0; 1 << 20])];
        let request = ModelInferRequest { raw_input_contents, ..ModelInferRequest::default() };
        assert_eq!(decoded_bytes(&request.encode_to_vec()).unwrap(), 0);
        assert!(size_of::<Bytes>() <= STRING_BYTES && size_of::<InferTensor>() <= FIELD_BYTES);
    }
}
