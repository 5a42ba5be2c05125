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
use tenure_tensor::mapped::MappedFile;
use tenure_tensor::{DType, Tensor};

use super::{CheckpointError, write_atomically};
use crate::module::Source;
use crate::{Result, StateError};

/// The longest header that safetensors' readers take, in bytes.
const HEADER_LIMIT: usize = 100_000_000;

/// Bytes of the header's length, which a file begins with.
const LENGTH: usize = size_of::<u64>();

/// Tensors in one file or several, mapped into memory: what is not asked for is not read.
pub struct Weights {
    files: Vec<WeightFile>,
    /// The file that each tensor is in.
    places: BTreeMap<String, usize>,
}

struct WeightFile {
    path: PathBuf,
    bytes: MappedFile,
    metadata: Metadata,
    /// Where the tensors begin.
    start: usize,
}

/// Where a tensor's bytes are, for who reads them in a way of its own: in the machine's order, the last dimension densest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place<'a> {
    /// The file.
    pub path: &'a Path,
    /// The first byte in the file.
    pub offset: u64,
    /// How many.
    pub bytes: u64,
    /// Sizes of the tensor.
    pub sizes: &'a [usize],
    /// What its elements are.
    pub dtype: DType,
}

/// `*.safetensors.index.json`.
#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl Weights {
    /// Opens a file; or those that an index (`.json`) lists; or what is in a folder: `model.safetensors`, or
    /// `model.safetensors.index.json`.
    ///
    /// # Errors
    /// [`CheckpointError`]: a file cannot be read, or is none of them.
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
        let (mut files, mut numbers, mut places) = (Vec::<WeightFile>::new(), HashMap::new(), BTreeMap::new());
        for (name, file) in index.weight_map {
            let number = match numbers.get(&file) {
                Some(number) => *number,
                None => {
                    // An index from elsewhere names files beside it, and no others.
                    let is_plain = Path::new(&file).file_name().is_some_and(|name| *name == *file);
                    if !is_plain {
                        return Err(CheckpointError::format(path, format!("{file:?} is no file's name")).into());
                    }
                    files.push(WeightFile::open(&path.with_file_name(&file))?);
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

    /// What the first file says of itself, by key.
    pub fn metadata(&self, key: &str) -> Option<&str> {
        self.files.first()?.metadata.metadata().as_ref()?.get(key).map(String::as_str)
    }

    /// Where a tensor is.
    ///
    /// # Errors
    /// It is not there, or of a dtype that is not known.
    pub fn place(&self, name: &str) -> Result<Place<'_>> {
        let (file, info, dtype) = self.find_known(name)?;
        let (from, to) = info.data_offsets;
        let (offset, bytes) = ((file.start + from) as u64, (to - from) as u64);
        Ok(Place { path: &file.path, offset, bytes, sizes: &info.shape, dtype })
    }

    fn find(&self, name: &str) -> Option<(&WeightFile, &TensorInfo)> {
        let file = &self.files[*self.places.get(name)?];
        Some((file, file.metadata.info(name)?))
    }

    /// The same, of a dtype that we have.
    fn find_known(&self, name: &str) -> Result<(&WeightFile, &TensorInfo, DType)> {
        let missing = || StateError::Names { of: "model", missing: vec![name.to_owned()], unexpected: Vec::new() };
        let (file, info) = self.find(name).ok_or_else(missing)?;
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
    fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(CheckpointError::io(path))?;
        expect_fetched_file(&file).map_err(CheckpointError::io(path))?;
        let bytes = MappedFile::of(&file).map_err(CheckpointError::io(path))?;
        let start = read_header(&file, bytes.len()).map_err(CheckpointError::io(path))?;
        let metadata = metadata(&start, bytes.len());
        let metadata = metadata.map_err(|error| CheckpointError::format(path, format!("no safetensors: {error}")))?;
        Ok(Self { path: path.to_owned(), bytes, metadata, start: start.len() })
    }
}

/// A file's bytes before its tensors, or as many as there are. It is read, since whoever cuts a file while it is looked at through
/// memory ends the program.
fn read_header(file: &File, file_bytes: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; LENGTH.min(file_bytes)];
    file.read_exact_at(&mut bytes, 0)?;
    if let Ok(length) = <[u8; LENGTH]>::try_from(&*bytes) {
        // A header that is too long is refused by its length.
        let end = usize::try_from(u64::from_le_bytes(length)).unwrap_or(usize::MAX).saturating_add(LENGTH);
        if end <= file_bytes.min(HEADER_LIMIT + LENGTH) {
            bytes.resize(end, 0);
            file.read_exact_at(&mut bytes[LENGTH..], LENGTH as u64)?;
        }
    }
    Ok(bytes)
}

/// What a file's header says, if its tensors are all that follows it.
fn metadata(header: &[u8], file_bytes: usize) -> std::result::Result<Metadata, SafeTensorError> {
    let metadata: Metadata = match SafeTensors::read_metadata(header) {
        Ok((_, metadata)) => metadata,
        // It is checked, and tensors follow.
        Err(SafeTensorError::MetadataIncompleteBuffer) => {
            serde_json::from_slice(&header[LENGTH..]).map_err(SafeTensorError::InvalidHeaderDeserialization)?
        }
        Err(error) => return Err(error),
    };
    match header.len() + metadata.data_len() == file_bytes {
        true => Ok(metadata),
        false => Err(SafeTensorError::MetadataIncompleteBuffer),
    }
}

/// What begins with a prefix, without it: a part of a larger model.
pub struct Under<'a> {
    source: &'a dyn Source,
    prefix: String,
}

impl<'a> Under<'a> {
    /// What of `source` begins with `prefix`, such as `bert.`.
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
/// [`CheckpointError`]; `path` is then as it was.
pub fn save<'a>(
    path: &Path,
    tensors: impl IntoIterator<Item = (String, &'a Tensor)>,
    metadata: (&str, &str),
) -> Result<()> {
    write(path, tensors.into_iter().map(|(name, tensor)| Entry::of(name, tensor)).collect(), metadata)
}

/// A tensor of a file, made when it is written.
pub(crate) struct Entry<'a> {
    pub(crate) name: String,
    pub(crate) sizes: Vec<usize>,
    pub(crate) dtype: DType,
    pub(crate) make: Box<dyn Fn() -> Result<Tensor> + 'a>,
}

impl<'a> Entry<'a> {
    /// Of a tensor that is there.
    pub(super) fn of(name: String, tensor: &'a Tensor) -> Self {
        Self { name, sizes: tensor.sizes().to_vec(), dtype: tensor.dtype(), make: Box::new(|| Ok(tensor.clone())) }
    }
}

/// The same, of tensors that are made when they are written.
pub(super) fn write(path: &Path, mut tensors: Vec<Entry<'_>>, metadata: (&str, &str)) -> Result<()> {
    let mut names = HashSet::new();
    for Entry { name, .. } in &tensors {
        if !names.insert(name) {
            return Err(CheckpointError::format(path, format!("two tensors would be named {name}")).into());
        }
    }
    // The widest dtype first, so that every tensor is aligned, as the format's own library orders them.
    tensors
        .sort_by(|left, right| stored(right.dtype).cmp(&stored(left.dtype)).then_with(|| left.name.cmp(&right.name)));
    let header = header(&tensors, metadata).map_err(|reason| CheckpointError::format(path, reason))?;
    let write = |out: &mut dyn Write| {
        out.write_all(&(header.len() as u64).to_le_bytes())?;
        out.write_all(&header)?;
        tensors.iter().try_for_each(|entry| {
            let tensor = (entry.make)().map_err(io::Error::other)?;
            tensor.with_bytes(|bytes| out.write_all(bytes)).map_err(io::Error::other)?
        })
    };
    Ok(write_atomically(path, write)?)
}

/// What stands before the tensors' bytes, without its length.
fn header(tensors: &[Entry<'_>], (key, value): (&str, &str)) -> Result<Vec<u8>, String> {
    let mut end = 0;
    let info = |Entry { name, sizes, dtype, .. }: &Entry<'_>| {
        let start = end;
        end += sizes.iter().product::<usize>() * dtype.size();
        let (dtype, shape) = (stored(*dtype), sizes.clone());
        (name.clone(), TensorInfo { dtype, shape, data_offsets: (start, end) })
    };
    let metadata = HashMap::from([(key.to_owned(), value.to_owned())]);
    let metadata = Metadata::new(Some(metadata), tensors.iter().map(info).collect()).map_err(|e| e.to_string())?;
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
        _ => return None,
    })
}
