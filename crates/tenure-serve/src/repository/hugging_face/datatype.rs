//! The datatype of stored weights, which answers have too.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use tenure_core::user_files::expect_fetched_file;

use crate::protocol::Datatype;
use crate::repository::config::MAX_JSON_BYTES;
use crate::repository::files::Folder;
use crate::repository::{RepositoryError, WeightFile};

/// The datatypes of weight files. A header is read again when its file has changed.
#[derive(Debug, Default)]
pub(super) struct StoredDatatypes(BTreeMap<PathBuf, (WeightFile, Datatype)>);

impl StoredDatatypes {
    /// Returns the datatype of a file's floating-point tensors: that of the first of them by name.
    pub(super) fn of(&mut self, folder: &Folder, name: &str) -> Result<Datatype, RepositoryError> {
        let file = WeightFile::look(folder, name)?;
        match self.0.get(&file.path) {
            Some((before, datatype)) if *before == file => Ok(*datatype),
            _ => {
                let datatype = read(&folder.path(name), &file.path)?;
                self.0.insert(file.path.clone(), (file, datatype));
                Ok(datatype)
            }
        }
    }

    /// Forgets files that are not in this set.
    pub(super) fn retain(&mut self, files: &BTreeSet<&Path>) {
        self.0.retain(|path, _| files.contains(&**path));
    }
}

/// Reads the header of a file, whose path in its folder is `path` and whose real path is `target`.
fn read(path: &Path, target: &Path) -> Result<Datatype, RepositoryError> {
    let bad = |message: String| RepositoryError::Json { path: path.to_owned(), message };
    let mut file = File::open(target).map_err(RepositoryError::io(path))?;
    expect_fetched_file(&file).map_err(RepositoryError::io(path))?;
    let mut length = [0; 8];
    file.read_exact(&mut length).map_err(RepositoryError::io(path))?;
    let length = u64::from_le_bytes(length);
    if length > MAX_JSON_BYTES {
        return Err(bad(format!("a header of {length} bytes is too long: it is not a safetensors file")));
    }
    let mut header = Vec::new();
    file.take(length).read_to_end(&mut header).map_err(RepositoryError::io(path))?;
    let header: Map<String, Value> =
        serde_json::from_slice(&header).map_err(|error| bad(format!("no file of safetensors: {error}")))?;
    let of = |tensor: &Value| match tensor.get("dtype")?.as_str()? {
        "F16" => Some(Datatype::Fp16),
        "BF16" => Some(Datatype::Bf16),
        "F32" => Some(Datatype::Fp32),
        "F64" => Some(Datatype::Fp64),
        _ => None,
    };
    let datatype = header.values().find_map(of);
    datatype.ok_or_else(|| {
        bad("no tensor is of float16, bfloat16, float32 or float64: other weights are not computed with".into())
    })
}
