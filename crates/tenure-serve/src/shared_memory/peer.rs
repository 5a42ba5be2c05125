//! The host that a request came from.

use std::net::IpAddr;

/// The address of the host that a request came from.
#[derive(Clone, Copy)]
pub(crate) struct Peer(pub(crate) IpAddr);

impl Peer {
    /// Returns whether it is this host. A client here that uses the host's external address counts as remote.
    pub(crate) fn is_here(&self) -> bool {
        self.0.to_canonical().is_loopback()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_here_if_it_comes_over_loopback() {
        for (address, is_here) in [
            ("127.0.0.1", true),
            ("127.9.9.9", true),
            ("::1", true),
            ("::ffff:127.0.0.1", true),
            ("10.0.0.1", false),
            ("::ffff:10.0.0.1", false),
            ("fe80::1", false),
        ] {
            assert_eq!(Peer(address.parse().unwrap()).is_here(), is_here, "{address}");
        }
    }
}
