//! gRPC's reflection, by which clients such as `grpcurl` learn the services and their messages.

use std::io;
use std::sync::LazyLock;

use bytes::Bytes;
use prost::Message;

use super::call::Call;
use super::convert::decode;
use super::messages::{
    ErrorResponse, FileDescriptorResponse, ListServiceResponse, ReflectionAnswer, ReflectionQuery,
    ServerReflectionRequest, ServerReflectionResponse, ServiceResponse,
};
use super::status::Code;
use super::wire::{Outgoing, frame};
use crate::service::ServeError;

/// The paths of the call, whose messages are the same in both versions.
pub(super) const PATHS: [&str; 2] = [
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
];

/// The compiled files of the folder `proto`.
static FILES: LazyLock<Vec<File>> = LazyLock::new(|| {
    let set = FileDescriptorSet::decode(&include_bytes!("../../proto/descriptors.bin")[..]).unwrap_or_default();
    set.files.into_iter().filter_map(File::read).collect()
});

/// Returns the names of all services.
pub(super) fn services() -> impl Iterator<Item = &'static str> {
    FILES.iter().flat_map(|file| &file.services).map(|service| &**service)
}

/// A file that declares services and messages.
struct File {
    name: String,
    services: Vec<String>,
    /// The names of all that it declares.
    symbols: Vec<String>,
    descriptor: Bytes,
}

impl File {
    fn read(descriptor: Bytes) -> Option<Self> {
        let FileDescriptor { name, package, messages, enums, services } =
            FileDescriptor::decode(descriptor.clone()).ok()?;
        let mut symbols = Vec::new();
        for message in &messages {
            message.declare(&package, &mut symbols);
        }
        symbols.extend(enums.iter().map(|named| format!("{package}.{}", named.name)));
        let mut names = Vec::new();
        for service in services {
            let name = format!("{package}.{}", service.name);
            symbols.extend(service.methods.iter().map(|method| format!("{name}.{}", method.name)));
            names.push(name);
        }
        symbols.extend(names.iter().cloned());
        Some(Self { name, services: names, symbols, descriptor })
    }
}

impl Call<'_> {
    /// Answers one query after the other.
    pub(super) async fn reflect(mut self, mut outgoing: Outgoing) -> io::Result<()> {
        loop {
            // The share of the previous message is free again.
            self.share = self.shared.share();
            let message = tokio::select! {
                () = outgoing.cancelled() => return Ok(()),
                () = self.shared.stopped() => return outgoing.end(&Err(ServeError::ShuttingDown)),
                message = self.incoming.next(&mut self.share) => message,
            };
            let answer = match message {
                Ok(Some(message)) => decode(message).and_then(|request| frame(&respond(request))),
                Ok(None) => return outgoing.end(&Ok(())),
                Err(error) => Err(error),
            };
            match answer {
                Ok(answer) => outgoing.send(answer).await?,
                Err(error) => return outgoing.end(&Err(error)),
            }
        }
    }
}

fn respond(request: ServerReflectionRequest) -> ServerReflectionResponse {
    let answer = match &request.query {
        Some(ReflectionQuery::FileByFilename(name)) => file(name, |file| file.name == *name),
        Some(ReflectionQuery::FileContainingSymbol(symbol)) => file(symbol, |file| file.symbols.contains(symbol)),
        Some(ReflectionQuery::ListServices(_)) => {
            let services = services().map(|name| ServiceResponse { name: name.into() }).collect();
            ReflectionAnswer::Services(ListServiceResponse { services })
        }
        // No message has extensions.
        Some(ReflectionQuery::FileContainingExtension(extension)) => file(&extension.containing_type, |_| false),
        Some(ReflectionQuery::AllExtensionNumbersOfType(message)) => file(message, |_| false),
        None => error(Code::InvalidArgument, "the request has no query".into()),
    };
    ServerReflectionResponse { valid_host: request.host.clone(), original_request: Some(request), answer: Some(answer) }
}

/// Returns the file that is asked for. No file imports another.
fn file(name: &str, is_it: impl Fn(&File) -> bool) -> ReflectionAnswer {
    match FILES.iter().find(|file| is_it(file)) {
        Some(file) => ReflectionAnswer::Files(FileDescriptorResponse { files: vec![file.descriptor.clone()] }),
        None => error(Code::NotFound, format!("{name:?} is unknown here")),
    }
}

fn error(code: Code, error_message: String) -> ReflectionAnswer {
    ReflectionAnswer::Error(ErrorResponse { error_code: code as i32, error_message })
}

/// A set of compiled files: the fields of `google.protobuf.FileDescriptorSet` and of the messages in it that are read.
#[derive(Clone, PartialEq, Message)]
struct FileDescriptorSet {
    #[prost(bytes = "bytes", repeated, tag = "1")]
    files: Vec<Bytes>,
}

#[derive(Clone, PartialEq, Message)]
struct FileDescriptor {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    package: String,
    #[prost(message, repeated, tag = "4")]
    messages: Vec<MessageDescriptor>,
    #[prost(message, repeated, tag = "5")]
    enums: Vec<Named>,
    #[prost(message, repeated, tag = "6")]
    services: Vec<ServiceDescriptor>,
}

#[derive(Clone, PartialEq, Message)]
struct MessageDescriptor {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, repeated, tag = "3")]
    nested: Vec<Self>,
    #[prost(message, repeated, tag = "4")]
    enums: Vec<Named>,
}

impl MessageDescriptor {
    /// Adds its name, and the names of what it has in it.
    fn declare(&self, parent: &str, symbols: &mut Vec<String>) {
        let name = format!("{parent}.{}", self.name);
        for nested in &self.nested {
            nested.declare(&name, symbols);
        }
        symbols.extend(self.enums.iter().map(|named| format!("{name}.{}", named.name)));
        symbols.push(name);
    }
}

#[derive(Clone, PartialEq, Message)]
struct ServiceDescriptor {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, repeated, tag = "2")]
    methods: Vec<Named>,
}

/// An enum or a method.
#[derive(Clone, PartialEq, Message)]
struct Named {
    #[prost(string, tag = "1")]
    name: String,
}
