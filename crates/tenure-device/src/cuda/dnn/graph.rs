//! Graphs of operations, and plans by which they are computed.

use std::ffi::c_void;

use cudarc::cudnn::sys::{
    cudnnBackendAttributeName_t as Name, cudnnBackendAttributeType_t as Type, cudnnBackendDescriptorType_t as Kind,
    cudnnBackendHeurMode_t as Mode, cudnnBackendNumericalNote_t as Note, cudnnDataType_t, cudnnHandle_t,
};
use tenure_core::DType;

use super::descriptor::{Descriptor, check};
use crate::ErrorKind;

/// The number of configurations to ask each heuristic for.
const CONFIGURATIONS: usize = 24;

/// A tensor of a graph, with its layout in memory in elements.
pub(super) struct Tensor<'a> {
    pub(super) id: i64,
    pub(super) sizes: &'a [i64],
    pub(super) strides: &'a [i64],
    pub(super) dtype: DType,
    /// The alignment of the first element, in bytes.
    pub(super) alignment: usize,
    pub(super) place: TensorPlace,
}

/// The place of a tensor.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum TensorPlace {
    Device,
    /// Nowhere in memory: it only passes from one operation of the graph to another.
    Virtual,
    /// On the host, with one element.
    Host,
}

impl Tensor<'_> {
    /// Creates the library's descriptor of the tensor.
    pub(super) fn describe(&self) -> Result<Descriptor, ErrorKind> {
        let tensor = Descriptor::new(Kind::CUDNN_BACKEND_TENSOR_DESCRIPTOR)?
            .set(Name::CUDNN_ATTR_TENSOR_UNIQUE_ID, &[self.id])?
            .set(Name::CUDNN_ATTR_TENSOR_DATA_TYPE, &[data_type(self.dtype)?])?
            .set(Name::CUDNN_ATTR_TENSOR_DIMENSIONS, self.sizes)?
            .set(Name::CUDNN_ATTR_TENSOR_STRIDES, self.strides)?
            .set(Name::CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, &[self.alignment as i64])?;
        match self.place {
            TensorPlace::Device => tensor,
            TensorPlace::Virtual => tensor.set(Name::CUDNN_ATTR_TENSOR_IS_VIRTUAL, &[true])?,
            TensorPlace::Host => tensor.set(Name::CUDNN_ATTR_TENSOR_IS_BY_VALUE, &[true])?,
        }
        .finish()
    }
}

/// The engines that may compute a graph.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Engines {
    /// Engines that multiply `f32` in full precision, and whose results have the same bits every time.
    Full,
    /// Engines whose results have the same bits every time.
    Repeatable,
    All,
}

/// A plan by which a graph is computed.
pub(super) struct EnginePlan {
    plan: Descriptor,
    /// The size of the workspace in bytes, including the tensors placed in it.
    pub(super) workspace_bytes: usize,
    /// Values of the tensors on the host, by their ids.
    pub(super) constants: Vec<(i64, Box<f32>)>,
    /// The tensors inside the workspace: their ids, and their offsets in bytes.
    placed: Vec<(i64, usize)>,
    pub(super) is_tuned: bool,
}

/// The device that plans are made for.
pub(super) enum PlanTarget {
    /// The device of a handle.
    Device(cudnnHandle_t),
    /// A device that may not exist here, described by its properties.
    #[cfg(test)]
    Described(Descriptor),
}

impl PlanTarget {
    /// Sets the device of a graph.
    fn of_graph(&self, graph: Descriptor) -> Result<Descriptor, ErrorKind> {
        match self {
            Self::Device(handle) => graph.set(Name::CUDNN_ATTR_OPERATIONGRAPH_HANDLE, &[*handle]),
            #[cfg(test)]
            Self::Described(_) => Ok(graph),
        }
    }

    /// Sets the device of heuristics.
    fn of_heuristics(&self, heuristics: Descriptor) -> Result<Descriptor, ErrorKind> {
        match self {
            Self::Device(_) => Ok(heuristics),
            #[cfg(test)]
            Self::Described(device) => heuristics.refer(Name::CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, &[device]),
        }
    }

    /// Sets the device of a plan.
    fn of_plan(&self, plan: Descriptor) -> Result<Descriptor, ErrorKind> {
        match self {
            Self::Device(handle) => plan.set(Name::CUDNN_ATTR_EXECUTION_PLAN_HANDLE, &[*handle]),
            #[cfg(test)]
            Self::Described(device) => plan.refer(Name::CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, &[device]),
        }
    }
}

/// Returns plans for a graph, from one to `count`, in the library's ranking from best to worst. Each takes a workspace
/// of at most `max_workspace` bytes.
pub(super) fn plans(
    target: &PlanTarget,
    operations: &[Descriptor],
    engines: Engines,
    max_workspace: usize,
    count: usize,
) -> Result<Vec<EnginePlan>, ErrorKind> {
    let operations: Vec<&Descriptor> = operations.iter().collect();
    let graph = Descriptor::new(Kind::CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR)?
        .refer(Name::CUDNN_ATTR_OPERATIONGRAPH_OPS, &operations)?;
    let graph = target.of_graph(graph)?.finish()?;
    let (mut plans, mut last) = (Vec::new(), None);
    for mode in [Mode::CUDNN_HEUR_MODE_A, Mode::CUDNN_HEUR_MODE_FALLBACK] {
        let heuristics = Descriptor::new(Kind::CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR)?
            .refer(Name::CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, &[&graph])?
            .set(Name::CUDNN_ATTR_ENGINEHEUR_MODE, &[mode])?;
        let configurations = target.of_heuristics(heuristics)?.finish().and_then(|heuristics| {
            let kind = Kind::CUDNN_BACKEND_ENGINECFG_DESCRIPTOR;
            heuristics.descriptors(Name::CUDNN_ATTR_ENGINEHEUR_RESULTS, kind, CONFIGURATIONS)
        });
        let configurations = match configurations {
            Ok(configurations) => configurations,
            Err(error) => {
                last = Some(error);
                continue;
            }
        };
        for configuration in configurations {
            if plans.len() == count {
                return Ok(plans);
            }
            if !is_allowed(&configuration, engines)? {
                continue;
            }
            match EnginePlan::new(target, &configuration) {
                Ok(plan) if plan.workspace_bytes <= max_workspace => plans.push(plan),
                Ok(_) => {}
                // Some configurations that the library suggests cannot compute the graph after all.
                Err(error) => last = Some(error),
            }
        }
        if !plans.is_empty() {
            break;
        }
    }
    if plans.is_empty() {
        Err(last.unwrap_or_else(|| ErrorKind::Library { code: 3000, name: "no engine computes that".to_owned() }))
    } else {
        Ok(plans)
    }
}

/// Returns whether the engine of a configuration is one of the `allowed` ones.
fn is_allowed(configuration: &Descriptor, allowed: Engines) -> Result<bool, ErrorKind> {
    let engines =
        configuration.descriptors(Name::CUDNN_ATTR_ENGINECFG_ENGINE, Kind::CUDNN_BACKEND_ENGINE_DESCRIPTOR, 1)?;
    let Some(engine) = engines.first() else { return Ok(false) };
    let notes = engine.notes(Name::CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, Type::CUDNN_TYPE_NUMERICAL_NOTE)?;
    let has = |note: Note| notes.contains(&(note as i32));
    let is_rough = has(Note::CUDNN_NUMERICAL_NOTE_TENSOR_CORE) || has(Note::CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS);
    let is_repeatable = !has(Note::CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC);
    Ok(match allowed {
        Engines::Full => is_repeatable && !is_rough,
        Engines::Repeatable => is_repeatable,
        Engines::All => true,
    })
}

impl EnginePlan {
    fn new(target: &PlanTarget, configuration: &Descriptor) -> Result<Self, ErrorKind> {
        let plan = Descriptor::new(Kind::CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)?
            .refer(Name::CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, &[configuration])?;
        let plan = target.of_plan(plan)?.finish()?;
        let workspace_bytes = plan.number(Name::CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE)?.max(0) as usize;
        Ok(Self { plan, workspace_bytes, constants: Vec::new(), placed: Vec::new(), is_tuned: false })
    }

    /// Places a tensor of `bytes` bytes in the workspace.
    pub(super) fn place_in_workspace(&mut self, id: i64, bytes: usize) {
        let at = self.workspace_bytes.next_multiple_of(256);
        self.workspace_bytes = at + bytes;
        self.placed.push((id, at));
    }

    /// Computes the graph on the handle's stream.
    ///
    /// # Safety
    /// The addresses, by their tensors' ids, and the workspace match the plan and stay valid until the handle's stream
    /// has completed it.
    pub(super) unsafe fn run(
        &self,
        handle: cudnnHandle_t,
        data: &[(i64, u64)],
        workspace: u64,
    ) -> Result<(), ErrorKind> {
        let constants = self.constants.iter().map(|(id, value)| (*id, std::ptr::from_ref::<f32>(value) as u64));
        let placed = self.placed.iter().map(|(id, at)| (*id, workspace + *at as u64));
        let all: Vec<(i64, u64)> = data.iter().copied().chain(constants).chain(placed).collect();
        let ids: Vec<i64> = all.iter().map(|(id, _)| *id).collect();
        let addresses: Vec<*mut c_void> = all.iter().map(|(_, address)| *address as *mut c_void).collect();
        let pack = Descriptor::new(Kind::CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR)?
            .set(Name::CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, &ids)?
            .set(Name::CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, &addresses)?
            .set(Name::CUDNN_ATTR_VARIANT_PACK_WORKSPACE, &[workspace as *mut c_void])?
            .finish()?;
        // SAFETY: the handle is alive, both descriptors are finished, and the caller guarantees the addresses.
        check(unsafe { cudarc::cudnn::sys::cudnnBackendExecute(handle, self.plan.raw(), pack.raw()) })
    }
}

/// Converts a dtype to the library's.
pub(super) fn data_type(dtype: DType) -> Result<cudnnDataType_t, ErrorKind> {
    match dtype {
        DType::F16 => Ok(cudnnDataType_t::CUDNN_DATA_HALF),
        DType::BF16 => Ok(cudnnDataType_t::CUDNN_DATA_BFLOAT16),
        DType::F32 => Ok(cudnnDataType_t::CUDNN_DATA_FLOAT),
        DType::F64 => Ok(cudnnDataType_t::CUDNN_DATA_DOUBLE),
        DType::I32 => Ok(cudnnDataType_t::CUDNN_DATA_INT32),
        DType::I64 => Ok(cudnnDataType_t::CUDNN_DATA_INT64),
        DType::Bool => Ok(cudnnDataType_t::CUDNN_DATA_BOOLEAN),
        DType::I8 => Ok(cudnnDataType_t::CUDNN_DATA_INT8),
        DType::U8 => Ok(cudnnDataType_t::CUDNN_DATA_UINT8),
        DType::I16 | DType::U16 | DType::U32 | DType::U64 => {
            Err(ErrorKind::Library { code: 3000, name: format!("cuDNN has no {dtype}") })
        }
    }
}
