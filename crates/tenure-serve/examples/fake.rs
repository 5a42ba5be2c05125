//! A server with echo models, for trying out clients: `cargo run --example fake 8000 8001`, where the second port is
//! for gRPC.
#![allow(clippy::unwrap_used, reason = "a test's service may panic")]

#[path = "../tests/suite/fake/mod.rs"]
mod fake;

use std::env;
use std::error::Error;
use std::future::pending;
use std::sync::Arc;

use tenure_serve::server::{InferenceServer, InferenceServerConfig};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut config = InferenceServerConfig::default();
    if let Some(port) = env::args().nth(1) {
        config.address.set_port(port.parse()?);
    }
    if let Some(port) = env::args().nth(2) {
        config.grpc = Some((config.address.ip(), port.parse()?).into());
    }
    let server = InferenceServer::bind(config, Arc::new(fake::Fake::default())).await?;
    if let Some(address) = server.grpc_address() {
        println!("grpc://{address}");
    }
    println!("http://{}", server.address());
    server.run(pending()).await;
    Ok(())
}
