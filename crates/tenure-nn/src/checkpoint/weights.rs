//! Tensors in safetensors files. <https://github.com/huggingface/safetensors>

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use safetensors::tensor::{Metadata, TensorInfo};
use safetensors::{Dtype, SafeTensorError, SafeTensors};
use serde::Deserialize;
use tenure_core::user_files::{expect_fetched, expect_fetched_file, without_mark};
use tenure_tensor::file_mapping::MappedFile;
use tenure_tensor::{DType, Tensor};

use super::{CheckpointError, write_atomically};
use crate::module::Source;
use crate::{Error, Result, StateError};

/// The longest header, in bytes, that safetensors' readers accept.
const HEADER_LIMIT: usize = 100_000_000;

/// The size in bytes of the header's length, which a file begins with.
const LENGTH: usize = size_of::<u64>();

/// Tensors in one or several files that are mapped into memory. Only the requested tensors are read.
pub struct Weights {
    files: Vec<WeightFile>,
    /// The index in `files` of each tensor's file.
    places: BTreeMap<String, usize>,
}

struct WeightFile {
    path: PathBuf,
    bytes: MappedFile,
    metadata: Metadata,
    /// The offset of the first tensor.
    start: usize,
}

/// The location of a tensor's bytes, for callers that read them in their own way. The bytes are in the machine's byte
/// order, the last dimension densest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilePlace<'a> {
    /// The file.
    pub path: &'a Path,
    /// The offset of the first byte in the file.
    pub offset: u64,
    /// The number of bytes.
    pub bytes: u64,
    /// The sizes of the tensor.
    pub sizes: &'a [usize],
    /// The type of the elements.
    pub dtype: DType,
}

/// The contents of `*.safetensors.index.json`.
#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl Weights {
    /// Opens a file, or the files that an index (`.json`) lists, or a folder's `model.safetensors` or
    /// `model.safetensors.index.json`.
    ///
    /// # Errors
    /// [`CheckpointError`]: a file cannot be read or has none of these formats.
    pub fn open(path: &Path) -> Result<Self> {
        if path.is_dir() {
            let index = path.join("model.safetensors.index.json");
            return Self::open(&if index.exists() { index } else { path.join("model.safetensors") });
        }
        if path.extension().is_some_and(|extension| extension == "json") {
            return Self::open_index(path);
        }
        let file = WeightFile::open(path)?;
        let places = file.metadata.tensors().into_keys().map(|name| (name, 0)).collect();
        Ok(Self { files: vec![file], places })
    }

    fn open_index(path: &Path) -> Result<Self> {
        let text = fs::read(path).map_err(CheckpointError::io(path))?;
        expect_fetched(&text).map_err(CheckpointError::io(path))?;
        let index: Index =
            serde_json::from_slice(without_mark(&text)).map_err(|error| CheckpointError::format(path, error))?;
        let mut files = Vec::<WeightFile>::new();
        let mut numbers = HashMap::new();
        let mut places = BTreeMap::new();
        for (name, file) in index.weight_map {
            let number = match numbers.get(&file) {
                Some(number) => *number,
                None => {
                    // An index may come from elsewhere, so it may name only files in its own folder.
                    let is_plain = Path::new(&file).file_name().is_some_and(|name| *name == *file);
                    if !is_plain {
                        return Err(CheckpointError::format(path, format!("{file:?} is not a file name")).into());
                    }
                    files.push(WeightFile::open_named(&path.with_file_name(&file), path)?);
                    numbers.insert(file, files.len() - 1);
                    files.len() - 1
                }
            };
            if files[number].metadata.info(&name).is_none() {
                let reason = format!("{name} is not in it, though {} says so", path.display());
                return Err(CheckpointError::format(&files[number].path, reason).into());
            }
            places.insert(name, number);
        }
        Ok(Self { files, places })
    }

    /// Returns the value of a key in the first file's metadata.
    pub fn metadata(&self, key: &str) -> Option<&str> {
        self.files.first()?.metadata.metadata().as_ref()?.get(key).map(String::as_str)
    }

    /// Returns the location of a tensor.
    ///
    /// # Errors
    /// The tensor is missing, or its dtype is not supported.
    pub fn place(&self, name: &str) -> Result<FilePlace<'_>> {
        let (file, info, dtype) = self.find_known(name)?;
        let (from, to) = info.data_offsets;
        let offset = (file.start + from) as u64;
        let bytes = (to - from) as u64;
        Ok(FilePlace { path: &file.path, offset, bytes, sizes: &info.shape, dtype })
    }

    fn find(&self, name: &str) -> Option<(&WeightFile, &TensorInfo)> {
        let file = &self.files[*self.places.get(name)?];
        Some((file, file.metadata.info(name)?))
    }

    /// Finds a tensor, and fails unless its dtype is supported.
    fn find_known(&self, name: &str) -> Result<(&WeightFile, &TensorInfo, DType)> {
        let (file, info) = self.find(name).ok_or_else(|| StateError::Names {
            of: "model",
            missing: vec![name.to_owned()],
            unexpected: Vec::new(),
        })?;
        let unknown =
            || CheckpointError::format(&file.path, format!("{name} is of dtype {:?}, which is not known", info.dtype));
        Ok((file, info, dtype(info.dtype).ok_or_else(unknown)?))
    }
}

impl Source for Weights {
    fn names(&self) -> Vec<String> {
        self.places.keys().cloned().collect()
    }

    fn sizes(&self, name: &str) -> Option<Vec<usize>> {
        self.find(name).map(|(_, info)| info.shape.clone())
    }

    fn check(&self, name: &str) -> Result<()> {
        self.find_known(name).map(drop)
    }

    fn tensor(&self, name: &str) -> Result<Tensor> {
        let (file, info, dtype) = self.find_known(name)?;
        let (from, to) = info.data_offsets;
        Ok(Tensor::from_bytes(&file.bytes[file.start + from..file.start + to], &info.shape, dtype)?)
    }
}

impl WeightFile {
    /// Opens a file that an index names.
    fn open_named(path: &Path, index: &Path) -> Result<Self> {
        Self::open(path).map_err(|error| match error {
            Error::Checkpoint(CheckpointError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                let reason = format!("not there, though {} names it: copy or download it", index.display());
                CheckpointError::format(path, reason).into()
            }
            error => error,
        })
    }

    fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(CheckpointError::io(path))?;
        expect_fetched_file(&file).map_err(CheckpointError::io(path))?;
        let bytes = MappedFile::of(&file).map_err(CheckpointError::io(path))?;
        let start = read_header(&file, bytes.len()).map_err(CheckpointError::io(path))?;
        let metadata = metadata(&start, bytes.len());
        let metadata = metadata.map_err(|reason| CheckpointError::format(path, reason))?;
        Ok(Self { path: path.to_owned(), bytes, metadata, start: start.len() })
    }
}

/// Reads the bytes of a file before its tensors, or all bytes if there are fewer. They are read and not mapped, because
/// the system ends this program if another process truncates a file that is mapped.
fn read_header(file: &File, file_bytes: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; LENGTH.min(file_bytes)];
    file.read_exact_at(&mut bytes, 0)?;
    if let Ok(length) = <[u8; LENGTH]>::try_from(&*bytes) {
        // The length alone is enough to refuse a header that is too long.
        let end = usize::try_from(u64::from_le_bytes(length)).unwrap_or(usize::MAX).saturating_add(LENGTH);
        if end <= file_bytes.min(HEADER_LIMIT + LENGTH) {
            bytes.resize(end, 0);
            file.read_exact_at(&mut bytes[LENGTH..], LENGTH as u64)?;
        }
    }
    Ok(bytes)
}

/// Parses a file's header, and checks that its tensors fill the rest of the file. An error is the reason why not.
fn metadata(header: &[u8], file_bytes: usize) -> std::result::Result<Metadata, String> {
    let metadata = match SafeTensors::read_metadata(header) {
        Ok((_, metadata)) => Ok(metadata),
        // The header was checked before this error, and the tensors follow it.
        Err(SafeTensorError::MetadataIncompleteBuffer) => {
            serde_json::from_slice(&header[LENGTH..]).map_err(SafeTensorError::InvalidHeaderDeserialization)
        }
        Err(SafeTensorError::HeaderTooSmall | SafeTensorError::InvalidHeaderLength) => {
            return Err(format!(
                "no safetensors, or cut off: it has {file_bytes} bytes, and the header of such a file has more: copy or \
                 download it again"
            ));
        }
        Err(error) => Err(error),
    };
    let metadata: Metadata = metadata.map_err(|error| format!("no safetensors: {error}"))?;
    let expected_bytes = header.len() + metadata.data_len();
    if file_bytes == expected_bytes {
        return Ok(metadata);
    }
    let difference = match expected_bytes.checked_sub(file_bytes) {
        Some(missing) => format!("{missing} are missing at its end"),
        None => format!("{} follow its last tensor", file_bytes - expected_bytes),
    };
    Err(format!(
        "damaged: it has {file_bytes} bytes, but its header says {expected_bytes}: {difference}; copy or download it again"
    ))
}

/// The tensors of a source whose names begin with a prefix, such as a part of a larger model. Their names lack the
/// prefix.
pub struct Under<'a> {
    source: &'a dyn Source,
    prefix: String,
}

impl<'a> Under<'a> {
    /// Selects the tensors of `source` whose names begin with `prefix`, such as `bert.`.
    pub fn new(source: &'a dyn Source, prefix: impl Into<String>) -> Self {
        Self { source, prefix: prefix.into() }
    }
}

impl Source for Under<'_> {
    fn names(&self) -> Vec<String> {
        let names = self.source.names().into_iter();
        names.filter_map(|name| name.strip_prefix(&self.prefix).map(str::to_owned)).collect()
    }

    fn sizes(&self, name: &str) -> Option<Vec<usize>> {
        self.source.sizes(&format!("{}{name}", self.prefix))
    }

    fn check(&self, name: &str) -> Result<()> {
        self.source.check(&format!("{}{name}", self.prefix))
    }

    fn tensor(&self, name: &str) -> Result<Tensor> {
        self.source.tensor(&format!("{}{name}", self.prefix))
    }
}

/// Writes tensors of any device to a file, [atomically](write_atomically). `metadata` is a key and its value.
///
/// # Errors
/// [`CheckpointError`]. `path` is unchanged then.
pub fn save<'a>(
    path: &Path,
    tensors: impl IntoIterator<Item = (String, &'a Tensor)>,
    metadata: (&str, &str),
) -> Result<()> {
    write(path, tensors.into_iter().map(|(name, tensor)| Entry::of(name, tensor)).collect(), metadata)
}

/// A tensor to be written. It is made only when the file's writer reaches it.
pub(crate) struct Entry<'a> {
    pub(crate) name: String,
    pub(crate) sizes: Vec<usize>,
    pub(crate) dtype: DType,
    pub(crate) make: Box<dyn Fn() -> Result<Tensor> + 'a>,
}

impl<'a> Entry<'a> {
    /// An entry for an existing tensor.
    pub(super) fn of(name: String, tensor: &'a Tensor) -> Self {
        Self { name, sizes: tensor.sizes().to_vec(), dtype: tensor.dtype(), make: Box::new(|| Ok(tensor.clone())) }
    }
}

/// Writes entries to a file, [atomically](write_atomically), and makes each tensor when it is due.
pub(super) fn write(path: &Path, mut tensors: Vec<Entry<'_>>, metadata: (&str, &str)) -> Result<()> {
    let mut names = HashSet::new();
    for Entry { name, .. } in &tensors {
        if !names.insert(name) {
            return Err(CheckpointError::format(path, format!("two tensors would be named {name}")).into());
        }
    }
    // The widest dtype comes first, as in the format's own library, so that every tensor is aligned.
    tensors
        .sort_by(|left, right| stored(right.dtype).cmp(&stored(left.dtype)).then_with(|| left.name.cmp(&right.name)));
    let header = header(&tensors, metadata).map_err(|reason| CheckpointError::format(path, reason))?;
    Ok(write_atomically(path, |out: &mut dyn Write| {
        out.write_all(&(header.len() as u64).to_le_bytes())?;
        out.write_all(&header)?;
        tensors.iter().try_for_each(|entry| {
            let tensor = (entry.make)().map_err(io::Error::other)?;
            tensor.with_bytes(|bytes| out.write_all(bytes)).map_err(io::Error::other)?
        })
    })?)
}

/// The header before the tensors' bytes, without its length.
fn header(tensors: &[Entry<'_>], (key, value): (&str, &str)) -> Result<Vec<u8>, String> {
    let mut end = 0;
    let mut infos = Vec::new();
    for Entry { name, sizes, dtype, .. } in tensors {
        let start = end;
        end += sizes.iter().product::<usize>() * dtype.size();
        let dtype = stored(*dtype);
        infos.push((name.clone(), TensorInfo { dtype, shape: sizes.clone(), data_offsets: (start, end) }));
    }
    let metadata = HashMap::from([(key.to_owned(), value.to_owned())]);
    let metadata = Metadata::new(Some(metadata), infos).map_err(|error| error.to_string())?;
    let mut header = serde_json::to_vec(&metadata).map_err(|error| error.to_string())?;
    header.resize(header.len().next_multiple_of(size_of::<u64>()), b' ');
    if header.len() > HEADER_LIMIT {
        return Err(format!("a header of {} bytes is more than the {HEADER_LIMIT} that are read", header.len()));
    }
    Ok(header)
}

fn stored(dtype: DType) -> Dtype {
    match dtype {
        DType::Bool => Dtype::BOOL,
        DType::U8 => Dtype::U8,
        DType::I8 => Dtype::I8,
        DType::I16 => Dtype::I16,
        DType::I32 => Dtype::I32,
        DType::I64 => Dtype::I64,
        DType::F16 => Dtype::F16,
        DType::BF16 => Dtype::BF16,
        DType::F32 => Dtype::F32,
        DType::F64 => Dtype::F64,
        DType::U16 => Dtype::U16,
        DType::U32 => Dtype::U32,
        DType::U64 => Dtype::U64,
    }
}

fn dtype(stored: Dtype) -> Option<DType> {
    Some(match stored {
        Dtype::BOOL => DType::Bool,
        Dtype::U8 => DType::U8,
        Dtype::I8 => DType::I8,
        Dtype::I16 => DType::I16,
        Dtype::I32 => DType::I32,
        Dtype::I64 => DType::I64,
        Dtype::F16 => DType::F16,
        Dtype::BF16 => DType::BF16,
        Dtype::F32 => DType::F32,
        Dtype::F64 => DType::F64,
        Dtype::U16 => DType::U16,
        Dtype::U32 => DType::U32,
        Dtype::U64 => DType::U64,
        _ => return None,
    })
}
