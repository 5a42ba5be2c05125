//! Graphs of operations, and how they are computed.

use std::ffi::c_void;

use cudarc::cudnn::sys::{
    cudnnBackendAttributeName_t as Name, cudnnBackendAttributeType_t as Type, cudnnBackendDescriptorType_t as Kind,
    cudnnBackendHeurMode_t as Mode, cudnnBackendNumericalNote_t as Note, cudnnDataType_t, cudnnHandle_t,
};
use tenure_core::DType;

use super::descriptor::{Descriptor, check};
use crate::ErrorKind;

/// Plans that are looked at before there is none.
const CONFIGURATIONS: usize = 24;

/// How a tensor lies in memory, in elements.
pub(super) struct Tensor<'a> {
    pub(super) id: i64,
    pub(super) sizes: &'a [i64],
    pub(super) strides: &'a [i64],
    pub(super) dtype: DType,
    /// In bytes, of the first element.
    pub(super) alignment: usize,
    pub(super) place: Place,
}

/// Where a tensor is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Device,
    /// Nowhere: it only goes from one operation of the graph to another.
    Between,
    /// One element, on the host.
    Host,
}

impl Tensor<'_> {
    pub(super) fn describe(&self) -> Result<Descriptor, ErrorKind> {
        let tensor = Descriptor::new(Kind::CUDNN_BACKEND_TENSOR_DESCRIPTOR)?
            .set(Name::CUDNN_ATTR_TENSOR_UNIQUE_ID, &[self.id])?
            .set(Name::CUDNN_ATTR_TENSOR_DATA_TYPE, &[data_type(self.dtype)?])?
            .set(Name::CUDNN_ATTR_TENSOR_DIMENSIONS, self.sizes)?
            .set(Name::CUDNN_ATTR_TENSOR_STRIDES, self.strides)?
            .set(Name::CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, &[self.alignment as i64])?;
        match self.place {
            Place::Device => tensor,
            Place::Between => tensor.set(Name::CUDNN_ATTR_TENSOR_IS_VIRTUAL, &[true])?,
            Place::Host => tensor.set(Name::CUDNN_ATTR_TENSOR_IS_BY_VALUE, &[true])?,
        }
        .finish()
    }
}

/// What ways of computing are taken.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Engines {
    /// Those that multiply `f32` as it is, and whose results are the same bits every time.
    Full,
    /// Those whose results are the same bits every time.
    Repeatable,
    All,
}

/// How a graph is computed.
pub(super) struct Plan {
    plan: Descriptor,
    /// With what is placed there.
    pub(super) workspace_bytes: usize,
    /// Values of the tensors that are on the host, by their id.
    pub(super) constants: Vec<(i64, Box<f32>)>,
    /// Tensors that are within the workspace, by their ids, and where.
    placed: Vec<(i64, usize)>,
    pub(super) is_tuned: bool,
}

/// What plans are made for.
pub(super) enum Target {
    /// The device of a handle.
    Device(cudnnHandle_t),
    /// One that may not be there, by its properties.
    #[cfg(test)]
    Described(Descriptor),
}

impl Target {
    fn of_graph(&self, graph: Descriptor) -> Result<Descriptor, ErrorKind> {
        match self {
            Self::Device(handle) => graph.set(Name::CUDNN_ATTR_OPERATIONGRAPH_HANDLE, &[*handle]),
            #[cfg(test)]
            Self::Described(_) => Ok(graph),
        }
    }

    fn of_heuristics(&self, heuristics: Descriptor) -> Result<Descriptor, ErrorKind> {
        match self {
            Self::Device(_) => Ok(heuristics),
            #[cfg(test)]
            Self::Described(device) => heuristics.refer(Name::CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, &[device]),
        }
    }

    fn of_plan(&self, plan: Descriptor) -> Result<Descriptor, ErrorKind> {
        match self {
            Self::Device(handle) => plan.set(Name::CUDNN_ATTR_EXECUTION_PLAN_HANDLE, &[*handle]),
            #[cfg(test)]
            Self::Described(device) => plan.refer(Name::CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, &[device]),
        }
    }
}

/// Plans for a graph that take so many bytes beside its operands at most, one at least and up to `count`, the best first as
/// the library thinks.
pub(super) fn plans(
    target: &Target,
    operations: &[Descriptor],
    engines: Engines,
    most_workspace: usize,
    count: usize,
) -> Result<Vec<Plan>, ErrorKind> {
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
            heuristics.parts(Name::CUDNN_ATTR_ENGINEHEUR_RESULTS, kind, CONFIGURATIONS)
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
            if !is_taken(&configuration, engines)? {
                continue;
            }
            match Plan::new(target, &configuration) {
                Ok(plan) if plan.workspace_bytes <= most_workspace => plans.push(plan),
                Ok(_) => {}
                // Some that the library advises do not compute the graph after all.
                Err(error) => last = Some(error),
            }
        }
        if !plans.is_empty() {
            break;
        }
    }
    let none = || ErrorKind::Library { code: 3000, name: "no engine computes that".to_owned() };
    if plans.is_empty() { Err(last.unwrap_or_else(none)) } else { Ok(plans) }
}

fn is_taken(configuration: &Descriptor, taken: Engines) -> Result<bool, ErrorKind> {
    let engines = configuration.parts(Name::CUDNN_ATTR_ENGINECFG_ENGINE, Kind::CUDNN_BACKEND_ENGINE_DESCRIPTOR, 1)?;
    let Some(engine) = engines.first() else { return Ok(false) };
    let notes = engine.notes(Name::CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, Type::CUDNN_TYPE_NUMERICAL_NOTE)?;
    let has = |note: Note| notes.contains(&(note as i32));
    let is_rough = has(Note::CUDNN_NUMERICAL_NOTE_TENSOR_CORE) || has(Note::CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS);
    let is_repeatable = !has(Note::CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC);
    Ok(match taken {
        Engines::Full => is_repeatable && !is_rough,
        Engines::Repeatable => is_repeatable,
        Engines::All => true,
    })
}

impl Plan {
    fn new(target: &Target, configuration: &Descriptor) -> Result<Self, ErrorKind> {
        let plan = Descriptor::new(Kind::CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)?
            .refer(Name::CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, &[configuration])?;
        let plan = target.of_plan(plan)?.finish()?;
        let workspace_bytes = plan.number(Name::CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE)?.max(0) as usize;
        Ok(Self { plan, workspace_bytes, constants: Vec::new(), placed: Vec::new(), is_tuned: false })
    }

    /// Gives a tensor a place of so many bytes within the workspace.
    pub(super) fn place(&mut self, id: i64, bytes: usize) {
        let at = self.workspace_bytes.next_multiple_of(256);
        self.workspace_bytes = at + bytes;
        self.placed.push((id, at));
    }

    /// # Safety
    /// The addresses, by their tensors' ids, and the workspace are as the plan says until the handle's stream has passed
    /// it.
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
        // SAFETY: the handle is alive, both descriptors are finished, and the caller answers for the addresses.
        check(unsafe { cudarc::cudnn::sys::cudnnBackendExecute(handle, self.plan.raw(), pack.raw()) })
    }
}

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
        DType::I16 => Err(ErrorKind::Library { code: 3000, name: format!("cuDNN has no {dtype}") }),
    }
}
