//! A served model's weights: tensors of files that may be rewritten.

use std::sync::Arc;

use tenure_nn::switched::StoredTensors;
use tenure_tensor::{DType, Tensor};

use super::ModelError;
use crate::repository::{StoredModel, WeightDtype};

/// All tensors of a network in the files of its model, the same for all devices.
#[derive(Clone)]
pub(crate) struct StoredWeights {
    pub(super) files: ModelFiles,
    pub(super) tensors: Arc<StoredTensors>,
}

/// The files of a model, as they were when they were inspected.
#[derive(Clone)]
pub(super) struct ModelFiles(Arc<StoredModel>);

impl StoredWeights {
    /// Finds a network's tensors in the model's files.
    pub(super) fn find(model: &Arc<StoredModel>, state: &[(&str, &Tensor)]) -> Result<Self, ModelError> {
        let paths: Vec<_> = model.weights.iter().map(|file| &file.path).collect();
        let tensors = Arc::new(StoredTensors::find(&paths, state)?);
        let stored = Self { files: ModelFiles(Arc::clone(model)), tensors };
        for tensor in stored.tensors.tensors() {
            check_dtype(model, &tensor.entry.name, tensor.dtype)?;
        }
        stored.files.check_unchanged()?;
        Ok(stored)
    }
}

impl ModelFiles {
    /// Returns the model that the files belong to.
    pub(super) fn model(&self) -> &Arc<StoredModel> {
        &self.0
    }

    /// Checks that the files have not changed since they were inspected.
    pub(super) fn check_unchanged(&self) -> Result<(), ModelError> {
        self.0.changed().map_or(Ok(()), |path| Err(ModelError::Changed { path: path.to_owned() }))
    }
}

fn check_dtype(model: &StoredModel, name: &str, stored: DType) -> Result<(), ModelError> {
    let wanted = model.config.dtype.map(|dtype| match dtype {
        WeightDtype::Float16 => DType::F16,
        WeightDtype::Bfloat16 => DType::BF16,
        WeightDtype::Float32 => DType::F32,
        WeightDtype::Float64 => DType::F64,
    });
    match wanted.filter(|wanted| *wanted != stored && stored.is_floating()) {
        Some(wanted) => Err(ModelError::Conversion { tensor: name.into(), stored, wanted }),
        None => Ok(()),
    }
}
