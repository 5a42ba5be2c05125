//! The socket that a daemon listens on, in a folder where no other user can replace it.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Uid, chown};
use rustix::net::SocketType;
use tenure_ipc::Listener;

use super::ShareError;

/// Returns the socket on which a daemon of device `device` listens by default: in `$XDG_RUNTIME_DIR/tenure` or, without
/// that variable, in a folder of this user under the system's folder for temporary files.
pub fn default_socket(device: u8) -> PathBuf {
    let folder = match std::env::var_os("XDG_RUNTIME_DIR").filter(|folder| !folder.is_empty()) {
        Some(folder) => PathBuf::from(folder).join("tenure"),
        None => std::env::temp_dir().join(format!("tenure-{}", rustix::process::getuid().as_raw())),
    };
    folder.join(format!("memory-{device}.sock"))
}

/// Listens at `path` for processes of user `uid`. Replaces the socket file of a daemon that has died.
pub(super) fn listen(path: &Path, uid: u32) -> Result<Listener, ShareError> {
    private_folder(path.parent().unwrap_or(Path::new(".")))?;
    let listener = Listener::bind(path, SocketType::SEQPACKET)?;
    if uid != rustix::process::getuid().as_raw() {
        chown(path, Some(Uid::from_raw(uid)), None)
            .map_err(|error| socket_error(path, "it cannot be given to the user who is served", error.into()))?;
    }
    Ok(listener)
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

fn socket_error(path: &Path, doing: &'static str, reason: io::Error) -> ShareError {
    ShareError::Socket { path: path.into(), doing, reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> u32 {
        rustix::process::getuid().as_raw()
    }

    #[test]
    fn only_its_user_can_open_the_socket_and_the_folder_made_for_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/memory.sock");
        let _listener = listen(&path, own()).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(path.parent().unwrap()).unwrap().mode() & 0o777, 0o700);
    }

    #[test]
    fn a_path_in_use_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("memory.sock");
        let file = folder.path().join("file");
        fs::write(&file, "mine").unwrap();
        let _first = listen(&path, own()).unwrap();
        assert!(matches!(listen(&path, own()), Err(ShareError::AlreadyServed { .. })));
        assert!(matches!(listen(&file, own()), Err(ShareError::Socket { .. })));
    }

    #[test]
    fn a_folder_that_others_write_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        let error = listen(&folder.path().join("memory.sock"), own()).err().unwrap();
        assert!(error.to_string().contains("not safe"), "{error}");
    }
}
