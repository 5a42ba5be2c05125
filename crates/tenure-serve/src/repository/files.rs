//! Access to the files of a repository, restricted to allowed folders.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};

use tenure_core::user_files::{expect_fetched, without_mark};

use super::RepositoryError;

/// A model's folder, and the folders that its files may lead to: itself, or the repository.
pub(super) struct Folder {
    path: PathBuf,
    allowed: [PathBuf; 2],
}

impl Folder {
    pub(super) fn open(root: &Path, path: PathBuf) -> Result<Self, RepositoryError> {
        let real = |path: &Path| fs::canonicalize(path).map_err(RepositoryError::io(path));
        let allowed = [real(&path)?, real(root)?];
        Ok(Self { path, allowed })
    }

    /// Returns its real path, with all links resolved.
    pub(super) fn target(&self) -> &Path {
        &self.allowed[0]
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Returns a subfolder, whose files may lead to the same places.
    pub(super) fn inside(&self, name: &str) -> Self {
        Self { path: self.path(name), allowed: self.allowed.clone() }
    }

    /// Returns the real path of a file, if it may be read.
    pub(super) fn file(&self, name: &str) -> Result<PathBuf, RepositoryError> {
        let path = self.path(name);
        let target = fs::canonicalize(&path).map_err(RepositoryError::io(&path))?;
        if !self.allowed.iter().any(|folder| target.starts_with(folder)) {
            return Err(RepositoryError::Outside { path, target });
        }
        // Rejects pipes, for example: a pipe without a writer would block forever.
        if !fs::metadata(&target).map_err(RepositoryError::io(&path))?.is_file() {
            return Err(RepositoryError::NotAFile { path });
        }
        Ok(target)
    }

    pub(super) fn text(&self, name: &str, limit: u64) -> Result<String, RepositoryError> {
        let path = self.path(name);
        let mut bytes = Vec::new();
        let file = File::open(self.file(name)?).map_err(RepositoryError::io(&path))?;
        file.take(limit + 1).read_to_end(&mut bytes).map_err(RepositoryError::io(&path))?;
        if bytes.len() as u64 > limit {
            return Err(RepositoryError::TooLong { path, limit });
        }
        expect_fetched(&bytes).map_err(RepositoryError::io(&path))?;
        String::from_utf8(without_mark(&bytes).to_vec())
            .map_err(|error| RepositoryError::io(path)(io::Error::new(io::ErrorKind::InvalidData, error)))
    }
}

/// Returns whether a name leads to a file inside a folder as it is written, and can be shown on one line.
pub(super) fn is_inside(name: &str) -> bool {
    !name.is_empty()
        && !name.contains(char::is_control)
        && Path::new(name).components().all(|part| matches!(part, Component::Normal(_)))
}
