//! The socket that a daemon listens on: one daemon for each path, accessible to one user only.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, Mode, Uid, chown, fchmod, flock};
use rustix::io::{Errno, ioctl_fionbio};
use rustix::net::{self, SocketAddrUnix};
use rustix::process::{Pid, test_kill_process};

use super::ShareError;
use super::socket::Socket;
use super::unforked::Unforked;

/// The number of connections that may wait to be accepted.
const BACKLOG: i32 = 128;

/// How long a socket's owner has to answer before it counts as busy.
const PROBE: Duration = Duration::from_millis(100);

/// Returns the socket on which a daemon of device `device` listens by default: in `$XDG_RUNTIME_DIR/tenure` or, without
/// that variable, in a folder of this user under the system's folder for temporary files.
pub fn default_socket(device: u8) -> PathBuf {
    let folder = match std::env::var_os("XDG_RUNTIME_DIR").filter(|folder| !folder.is_empty()) {
        Some(folder) => PathBuf::from(folder).join("tenure"),
        None => std::env::temp_dir().join(format!("tenure-{}", rustix::process::getuid().as_raw())),
    };
    folder.join(format!("memory-{device}.sock"))
}

/// A listening socket, which children of this process do not keep open. Its file is removed on drop.
pub(super) struct Listener {
    socket: Unforked,
    path: PathBuf,
    _lock: Lock,
}

/// The lock on a socket's path, held until the daemon ends, however it ends. The lock file is never removed: removing
/// it would race with a process that is taking the lock.
struct Lock(Unforked);

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing the file is not enough: a child process that another thread is starting holds it open too, for a
        // moment.
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

impl Listener {
    /// Listens at `path` for processes of user `uid`. Replaces the socket file of a daemon that has died.
    pub(super) fn bind(path: &Path, uid: u32) -> Result<Self, ShareError> {
        let failed = |doing| move |error: Errno| socket_error(path, doing, error.into());
        private_folder(path.parent().unwrap_or(Path::new(".")))?;
        let lock = lock(path)?;
        remove_stale(path)?;
        let socket = Unforked::new(Socket::unconnected).map_err(failed("no socket"))?;
        // Set the mode before the socket has a name: the file is made with the socket's own mode, so it is never open
        // to others.
        fchmod(&socket, Mode::RUSR | Mode::WUSR).map_err(failed("its mode cannot be set"))?;
        let address = SocketAddrUnix::new(path).map_err(failed("no socket can have this path"))?;
        net::bind(&socket, &address).map_err(failed("no socket can be made here"))?;
        let listener = Self { socket, path: path.into(), _lock: lock };
        if uid != rustix::process::getuid().as_raw() {
            let failed = failed("it cannot be given to the user who is served");
            chown(path, Some(Uid::from_raw(uid)), None).map_err(failed)?;
        }
        ioctl_fionbio(&listener.socket, true).map_err(failed("it cannot be made non-blocking"))?;
        net::listen(&listener.socket, BACKLOG).map_err(failed("it cannot be listened on"))?;
        Ok(listener)
    }

    /// Accepts a waiting connection; fails with [`Errno::AGAIN`] if there is none.
    pub(super) fn accept(&self) -> Result<Socket<Unforked>, Errno> {
        Socket::accept(self.socket.as_fd())
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Another process may have removed the file before.
        let _ = fs::remove_file(&self.path);
    }
}

/// Creates `folder` for this user alone. If it exists already, checks that no other user could replace files in it.
fn private_folder(folder: &Path) -> Result<(), ShareError> {
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
        .map_err(|error| socket_error(folder, "the folder cannot be made", error))?;
    let found = fs::metadata(folder).map_err(|error| socket_error(folder, "the folder cannot be read", error))?;
    let owner = found.uid();
    let user = rustix::process::getuid().as_raw();
    let open = found.mode() & 0o022 != 0;
    let sticky = found.mode() & 0o1000 != 0;
    if (owner != user && owner != 0) || (open && !sticky) {
        let reason = io::Error::new(io::ErrorKind::PermissionDenied, "other users could replace the socket in it");
        return Err(socket_error(folder, "the folder is not safe", reason));
    }
    Ok(())
}

/// Takes the lock beside the socket, and writes this process's number into it.
fn lock(path: &Path) -> Result<Lock, ShareError> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let lock_path = Path::new(&name);
    let failed = |doing| move |error| socket_error(lock_path, doing, error);
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    let held = Unforked::new(|| options.open(&name).map(OwnedFd::from))
        .map_err(failed("the lock cannot be opened: another user's file may be in the way"))?;
    // A second descriptor of the same file, for reading and writing.
    let mut file = File::from(held.as_fd().try_clone_to_owned().map_err(failed("the lock cannot be read"))?);
    let owner = file.metadata().map_err(failed("the lock cannot be read"))?.uid();
    if owner != rustix::process::getuid().as_raw() && owner != 0 {
        let reason = format!("it belongs to user {owner}: remove it, or choose another folder");
        let reason = io::Error::new(io::ErrorKind::PermissionDenied, reason);
        return Err(failed("the lock is not to be trusted")(reason));
    }
    match flock(&held, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => {
            let mut pid = String::new();
            // The process number only improves the message.
            let _ = file.read_to_string(&mut pid);
            return Err(ShareError::AlreadyServed { socket: path.into(), by: server(pid.trim()) });
        }
        Err(error) => return Err(failed("the lock cannot be taken")(error.into())),
    }
    let lock = Lock(held);
    file.set_len(0)
        .and_then(|()| writeln!(file, "{}", std::process::id()))
        .map_err(failed("the lock cannot be written"))?;
    Ok(lock)
}

/// Describes the holder of the lock, given the process number in the lock file.
fn server(pid: &str) -> String {
    let process = pid.parse().ok().and_then(Pid::from_raw);
    match process.map(test_kill_process) {
        Some(Err(Errno::SRCH)) => format!("what process {pid}, which has ended, has left behind: end its children"),
        _ => format!("the memory daemon of process {pid}"),
    }
}

/// Removes the socket file that a dead daemon left. Fails if a process answers on the socket or the file is no socket.
fn remove_stale(path: &Path) -> Result<(), ShareError> {
    let found = match fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(socket_error(path, "it cannot be looked at", error)),
    };
    if !found.file_type().is_socket() {
        let reason = io::Error::from(io::ErrorKind::AlreadyExists);
        return Err(socket_error(path, "a file that is not a socket is in the way", reason));
    }
    // A socket of another type belongs to another program, and so does one whose owner is too busy to answer.
    if matches!(Socket::connect(path, PROBE), Ok(_) | Err(Errno::PROTOTYPE | Errno::AGAIN)) {
        return Err(ShareError::AlreadyServed { socket: path.into(), by: "another program".into() });
    }
    fs::remove_file(path).map_err(|error| socket_error(path, "the file of a dead daemon cannot be removed", error))
}

fn socket_error(path: &Path, doing: &'static str, reason: io::Error) -> ShareError {
    ShareError::Socket { path: path.into(), doing, reason }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    fn own() -> u32 {
        rustix::process::getuid().as_raw()
    }

    #[test]
    fn only_its_user_can_open_the_socket_and_the_folder_made_for_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/memory.sock");
        let _listener = Listener::bind(&path, own()).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(path.parent().unwrap()).unwrap().mode() & 0o777, 0o700);
    }

    #[test]
    fn a_second_daemon_is_told_of_the_first() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("memory.sock");
        let first = Listener::bind(&path, own()).unwrap();
        let error = Listener::bind(&path, own()).err().unwrap().to_string();
        assert!(error.contains(&format!("process {}", std::process::id())), "{error}");
        drop(first);
        assert!(!path.exists());
        Listener::bind(&path, own()).unwrap();
    }

    #[test]
    fn a_process_that_has_ended_is_not_named_as_the_one_that_serves() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("memory.sock");
        let lock = folder.path().join("memory.sock.lock");
        let mut ended = std::process::Command::new("true").spawn().unwrap();
        ended.wait().unwrap();
        fs::write(&lock, ended.id().to_string()).unwrap();
        let held = File::open(&lock).unwrap();
        flock(&held, FlockOperation::NonBlockingLockExclusive).unwrap();
        let error = Listener::bind(&path, own()).err().unwrap().to_string();
        assert!(error.contains(&format!("process {}, which has ended", ended.id())), "{error}");
    }

    #[test]
    fn the_socket_of_a_dead_daemon_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("memory.sock");
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        let _listener = Listener::bind(&path, own()).unwrap();
        Socket::connect(&path, PROBE).unwrap();
    }

    #[test]
    fn another_program_s_socket_and_file_are_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("other.sock");
        let file = folder.path().join("file");
        let _other = UnixListener::bind(&socket).unwrap();
        fs::write(&file, "mine").unwrap();
        assert!(matches!(Listener::bind(&socket, own()), Err(ShareError::AlreadyServed { .. })));
        assert!(matches!(Listener::bind(&file, own()), Err(ShareError::Socket { .. })));
        assert!(socket.exists());
        assert_eq!(fs::read(&file).unwrap(), b"mine");
    }

    #[test]
    fn a_folder_that_others_write_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        let error = Listener::bind(&folder.path().join("memory.sock"), own()).err().unwrap();
        assert!(error.to_string().contains("not safe"), "{error}");
    }

    #[test]
    fn a_lock_of_another_user_is_refused_by_name() {
        if own() != 0 {
            eprintln!("skipped: only root can make another user's file");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("memory.sock");
        let lock = folder.path().join("memory.sock.lock");
        let foreign = File::create(&lock).unwrap();
        chown(&lock, Some(Uid::from_raw(65534)), None).unwrap();
        flock(&foreign, FlockOperation::NonBlockingLockExclusive).unwrap();
        let error = Listener::bind(&path, own()).err().unwrap().to_string();
        assert!(error.contains(lock.to_str().unwrap()) && error.contains("user 65534"), "{error}");
    }

    #[test]
    fn a_path_that_is_too_long_is_an_error_that_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let error = Listener::bind(&folder.path().join("x".repeat(120)), own()).err().unwrap();
        assert!(error.to_string().contains("no socket can have this path"), "{error}");
    }
}
