//! Tests of the server over TLS.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::http::Request;
use bytes::Bytes;
use tempfile::TempDir;
use tenure_serve::server::{InferenceServer, InferenceServerConfig};
use tenure_serve::service::{Limits, TlsFiles};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::fake::Fake;
use crate::loopback::{Answer, Served, receive, request, wait_until};

/// Writes a certificate for `localhost`, and its key.
fn write(folder: &Path, name: &str) -> TlsFiles {
    let made = rcgen::generate_simple_self_signed(["localhost".into()]).unwrap();
    let [certificate, key] = ["cert", "key"].map(|kind| folder.join(format!("{name}-{kind}.pem")));
    fs::write(&certificate, made.cert.pem()).unwrap();
    fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    TlsFiles { certificate, key }
}

/// A server with a certificate.
struct Encrypted {
    served: Served,
    files: TlsFiles,
    _folder: TempDir,
}

impl Encrypted {
    fn new(limits: Limits) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let files = write(folder.path(), "server");
        let grpc: SocketAddr = ([127, 0, 0, 1], 0).into();
        let config = InferenceServerConfig {
            tls: Some(files.clone()),
            grpc: Some(grpc),
            limits,
            ..InferenceServerConfig::default()
        };
        Self { served: Served::with(config), files, _folder: folder }
    }

    /// Connects a client that trusts the server's certificate and offers some protocols.
    async fn connect(
        &self,
        address: SocketAddr,
        protocols: &[&str],
    ) -> std::io::Result<TlsStream<tokio::net::TcpStream>> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(&self.files.certificate).unwrap()).unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let config = config.with_safe_default_protocol_versions().unwrap();
        let mut config = config.with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().into()).collect();
        let stream = tokio::net::TcpStream::connect(address).await?;
        TlsConnector::from(Arc::new(config)).connect(ServerName::try_from("localhost").unwrap(), stream).await
    }

    /// Sends a GET request over HTTP, and returns the answer and the agreed protocol.
    fn get(&self, path: &str, protocols: &[&str]) -> (Answer, Option<Vec<u8>>) {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        self.served.runtime.block_on(async {
            let mut stream = self.connect(self.served.address, protocols).await.unwrap();
            let protocol = stream.get_ref().1.alpn_protocol().map(<[u8]>::to_vec);
            stream.write_all(&request("GET", path, &[], &[])).await.unwrap();
            let mut bytes = Vec::new();
            // The stream ends properly and is not cut off.
            stream.read_to_end(&mut bytes).await.unwrap();
            (Answer::parse(&bytes).unwrap().0, protocol)
        })
    }
}

#[test]
fn http_is_answered_over_tls() {
    let encrypted = Encrypted::new(Limits::default());
    for (protocols, expected) in [(&["h2", "http/1.1"][..], Some(b"http/1.1".to_vec())), (&[], None)] {
        let (answer, protocol) = encrypted.get("/v2/health/live", protocols);
        assert_eq!((answer.status, &*answer.text(), protocol), (200, r#"{"live":true}"#, expected));
    }
}

#[test]
fn grpc_is_answered_over_tls() {
    let encrypted = Encrypted::new(Limits::default());
    let code = encrypted.served.runtime.block_on(async {
        let stream = encrypted.connect(encrypted.served.grpc_address.unwrap(), &["h2"]).await.unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
        let (mut requests, connection) = h2::client::handshake(stream).await.unwrap();
        tokio::spawn(connection);
        let request = Request::post("https://localhost/inference.GRPCInferenceService/ServerLive");
        let request = request.header("content-type", "application/grpc").body(()).unwrap();
        let (response, mut body) = requests.send_request(request, false).unwrap();
        body.send_data(Bytes::from_static(&[0; 5]), true).unwrap();
        let mut answer = response.await.unwrap().into_body();
        while let Some(data) = answer.data().await {
            assert_eq!(data.unwrap()[..], [0, 0, 0, 0, 2, 8, 1]);
        }
        answer.trailers().await.unwrap().unwrap().remove("grpc-status").unwrap()
    });
    assert_eq!(code, "0");
}

#[test]
fn another_protocol_is_not_agreed_on() {
    let encrypted = Encrypted::new(Limits::default());
    let connect = encrypted.connect(encrypted.served.address, &["h2"]);
    assert!(encrypted.served.runtime.block_on(connect).is_err());
}

#[test]
fn a_client_that_does_not_encrypt_is_not_answered() {
    let encrypted = Encrypted::new(Limits::default());
    let stream = encrypted.served.send(&request("GET", "/v2", &[], &[]));
    assert!(receive_nothing(stream), "an answer that is not encrypted");
    assert_eq!(encrypted.get("/v2", &[]).0.status, 200);
}

/// Returns whether a connection ends without an HTTP answer.
fn receive_nothing(mut stream: TcpStream) -> bool {
    let mut bytes = Vec::new();
    // A reset connection has ended, too.
    let _ = stream.read_to_end(&mut bytes);
    !bytes.starts_with(b"HTTP")
}

#[test]
fn a_handshake_that_does_not_come_keeps_no_other_waiting() {
    let encrypted = Encrypted::new(Limits::default());
    let mut silent = TcpStream::connect(encrypted.served.address).unwrap();
    // A handshake record begins and does not continue.
    silent.write_all(&[22, 3, 1]).unwrap();
    assert_eq!(encrypted.get("/v2", &[]).0.status, 200);
}

#[test]
fn more_handshakes_than_there_are_places_for_keep_no_health_check_waiting() {
    let limits = Limits { head: Duration::from_secs(3600), connections: 8, ..Limits::default() };
    let encrypted = Encrypted::new(limits);
    let half_open: Vec<TcpStream> = (0..100)
        .map(|_| {
            let mut stream = TcpStream::connect(encrypted.served.address).unwrap();
            stream.write_all(&[22, 3, 1]).unwrap();
            stream
        })
        .collect();
    assert_eq!(encrypted.get("/v2/health/live", &[]).0.status, 200);
    assert_eq!(encrypted.get("/v2", &[]).0.status, 200);
    drop(half_open);
}

#[test]
fn a_handshake_has_a_time_limit() {
    let limits = Limits { head: Duration::from_millis(50), ..Limits::default() };
    let encrypted = Encrypted::new(limits);
    let silent = TcpStream::connect(encrypted.served.address).unwrap();
    assert!(receive(silent).is_none());
}

#[test]
fn a_server_that_ends_does_not_wait_for_handshakes() {
    let mut encrypted = Encrypted::new(Limits { head: Duration::from_secs(3600), ..Limits::default() });
    let silent = TcpStream::connect(encrypted.served.address).unwrap();
    encrypted.served.stop.take().unwrap().send(()).unwrap();
    wait_until("the listener is closed", || TcpStream::connect(encrypted.served.address).is_err());
    assert!(receive(silent).is_none());
}

#[test]
fn files_that_are_no_certificate_and_key_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let good = write(folder.path(), "good");
    let other = write(folder.path(), "other");
    let empty = folder.path().join("empty.pem");
    fs::write(&empty, "nothing\n").unwrap();
    let missing = folder.path().join("missing.pem");
    let broken = folder.path().join("broken.pem");
    fs::write(&broken, "-----BEGIN CERTIFICATE-----\n*\n-----END CERTIFICATE-----\n").unwrap();
    let error = |certificate: &Path, key: &Path| {
        let tls = Some(TlsFiles { certificate: certificate.into(), key: key.into() });
        let mut config = InferenceServerConfig { tls, ..InferenceServerConfig::default() };
        config.address.set_port(0);
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(InferenceServer::bind(config, Arc::new(Fake::default()))).err().unwrap().to_string()
    };
    let is_about = |error: String, path: &Path, said: &str| {
        assert!(error.starts_with(&path.display().to_string()) && error.contains(said), "{error}");
    };
    is_about(error(&missing, &good.key), &missing, "cannot be read as PEM");
    is_about(error(&good.certificate, &missing), &missing, "cannot be read as PEM");
    is_about(error(&broken, &good.key), &broken, "cannot be read as PEM");
    is_about(error(&empty, &good.key), &empty, "no certificate");
    is_about(error(&good.certificate, &empty), &empty, "no private key");
    is_about(error(&good.certificate, &good.certificate), &good.certificate, "no private key");
    is_about(error(&good.certificate, &other.key), &good.certificate, "cannot be used together");
}
