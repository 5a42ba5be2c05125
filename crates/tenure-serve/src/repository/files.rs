//! What of a repository's files is read, and from where.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};

use tenure_core::user_files::{expect_fetched, without_mark};

use super::RepositoryError;

/// A model's folder, and what its files may lead to: that, or the repository.
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

    /// Where it is, behind all links.
    pub(super) fn target(&self) -> &Path {
        &self.allowed[0]
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// A folder in this one, whose files may lead to the same places.
    pub(super) fn inside(&self, name: &str) -> Self {
        Self { path: self.path(name), allowed: self.allowed.clone() }
    }

    /// Where a file really is, if it may be read.
    pub(super) fn file(&self, name: &str) -> Result<PathBuf, RepositoryError> {
        let path = self.path(name);
        let target = fs::canonicalize(&path).map_err(RepositoryError::io(&path))?;
        if !self.allowed.iter().any(|folder| target.starts_with(folder)) {
            return Err(RepositoryError::Outside { path, target });
        }
        // Not a pipe, which nobody may ever write to.
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
        let invalid = |error| RepositoryError::io(path)(io::Error::new(io::ErrorKind::InvalidData, error));
        String::from_utf8(without_mark(&bytes).to_vec()).map_err(invalid)
    }
}

/// Whether a name, as it is written, leads to a file inside a folder, and can be shown in a line.
pub(super) fn is_inside(name: &str) -> bool {
    !name.is_empty()
        && !name.contains(char::is_control)
        && Path::new(name).components().all(|part| matches!(part, Component::Normal(_)))
}
