//! A test of the process at the other end of a connection. It is a program of its own: a child process that another test
//! starts would hold the connection open for a moment.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use tenure_ipc::Peer;

#[test]
fn a_peer_is_this_process_while_it_is_connected() {
    let (a, b) = UnixStream::pair().unwrap();
    let peer = Peer::of(a.as_fd()).unwrap();
    assert_eq!((peer.pid, peer.uid), (Some(std::process::id()), rustix::process::getuid().as_raw()));
    assert!(peer.exit.is_some());
    b.shutdown(Shutdown::Write).unwrap();
    assert!(Peer::of(a.as_fd()).unwrap().exit.is_some(), "it runs, and may read");
    drop(b);
    let peer = Peer::of(a.as_fd()).unwrap();
    assert!(peer.pid.is_none() && peer.exit.is_none());
}
