//! The limits of a server, and the clients that operate it.

use std::time::Duration;

use super::Peer;

/// The limits of an [`InferenceServer`](crate::server::InferenceServer).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The longest body in bytes, both as received and decompressed.
    pub body_bytes: usize,
    /// The bytes of the bodies of all requests in progress. A request that does not fit is told to come again later.
    pub all_body_bytes: usize,
    /// The longest request line and headers in bytes.
    pub header_bytes: usize,
    /// The most connections at once, each with at most one request in progress; half of them from one address. Others
    /// take the place of connections that have no request, or are answered health checks only. gRPC has as many
    /// connections of its own, which together have at most as many calls in progress.
    pub connections: usize,
    /// The time limit of a TLS handshake, and of receiving the first headers after it.
    pub head: Duration,
    /// The longest time in which a body makes too little progress: at least a KiB and a sixteenth of what has arrived.
    pub stall: Duration,
    /// The time limit of receiving a body; also the longest idle time of a connection, and the longest time that a client
    /// may accept no bytes of its answer.
    pub receive: Duration,
    /// The time that requests in progress have to end when the server shuts down.
    pub drain: Duration,
}

impl Default for Limits {
    /// Bodies of 64 MiB, and 1 GiB together; headers of 32 KiB; 1,024 connections; 10 s for a handshake, for the first
    /// headers and without progress; a minute to receive and half a minute to shut down.
    fn default() -> Self {
        Self {
            body_bytes: 64 << 20,
            all_body_bytes: 1 << 30,
            header_bytes: 32 << 10,
            connections: 1024,
            head: Duration::from_secs(10),
            stall: Duration::from_secs(10),
            receive: Duration::from_secs(60),
            drain: Duration::from_secs(30),
        }
    }
}

/// The clients that may load and unload models and use shared memory, with which a client reads and writes every object
/// that the server's user can.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Operators {
    /// Clients on the server's host, and clients with a token.
    #[default]
    HereOrWithToken,
    /// All clients.
    All,
}

impl Operators {
    /// Returns whether a client is one of them.
    pub(super) fn include(self, peer: Option<Peer>, has_token: bool) -> bool {
        match self {
            Self::HereOrWithToken => has_token || peer.is_some_and(|peer| peer.is_here()),
            Self::All => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_of_another_host_without_a_token_operates_no_server() {
        let here = Some(Peer([127, 0, 0, 1].into()));
        let there = Some(Peer([10, 0, 0, 1].into()));
        let default = Operators::default();
        let included = [(here, false), (there, true), (there, false), (None, false)]
            .map(|(peer, has_token)| default.include(peer, has_token));
        assert_eq!(included, [true, true, false, false]);
        assert!(Operators::All.include(there, false));
    }
}
