//! The extension module `tenure._native`: the Rust half of the Python package `tenure`. Its public interface is
//! documented in `python/tenure`. Structured results are JSON, with the keys of the program's `--json`.
//!
//! Every function that waits or computes releases the GIL, so that other Python threads run meanwhile.

mod budget;
mod devices;
mod errors;
mod interrupt;
mod memory;
mod onnx;
mod operations;
mod placement;
mod plan;
mod profiler;
mod purpose;
mod recipe;
mod sharing;
mod switcher;
mod tensor;
mod torch;
mod trace;
mod weights_memory;

use pyo3::prelude::*;
use serde::Serialize;

use crate::errors::complaint;

// Shared state has locks of its own, as the GIL may be off. Code that waits releases the GIL all the same.
#[pymodule(gil_used = false)]
mod _native {
    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");

    #[pymodule_export]
    use crate::budget::{Budget, BudgetPhase, BudgetState, BudgetSteps, PackedTensor, TensorBudget};
    #[pymodule_export]
    use crate::devices::devices;
    #[pymodule_export]
    use crate::memory::{
        empty_cache, host_memory_stats, installed, memory_report, memory_snapshot, memory_stats, parse_amount,
        reset_peak_stats, set_memory_fraction,
    };
    #[pymodule_export]
    use crate::onnx::export_onnx;
    #[pymodule_export]
    use crate::operations::SavedHooks;
    #[pymodule_export]
    use crate::placement::{Placement, Recorder, cpu_api, leave_placement, placed_in};
    #[pymodule_export]
    use crate::plan::{AgentClient, Mapping, Problem, plan, planners, simulate_mapping};
    #[pymodule_export]
    use crate::profiler::{ProfileObject, ProfilerObject, start_profiler};
    #[pymodule_export]
    use crate::purpose::{
        begin_span, current_purpose, end_span, enter_purpose, intern_key, leave_purpose, module_of_key, retag,
        set_purpose, tags,
    };
    #[pymodule_export]
    use crate::sharing::{
        about_shared_parameters, allocate_shared_cache, attach_shared_parameters, check_room_for_parameters,
        check_shared_parameters, clear_shared_cache, clear_shared_parameters, insert_shared_computation,
        insert_shared_parameters, join_own_shared_cache, module_stream, own_bytes, owns_shared_cache,
        publish_shared_parameters, recv_shared_cache, send_shared_cache, shared_cache_socket, shared_parameter_range,
    };
    #[pymodule_export]
    use crate::switcher::{SwitchedWeights, Switcher, divide_layers, keep_order, known_order};
    #[pymodule_export]
    use crate::tensor::{
        DTypeObject, DefaultStatesObject, DeviceObject, EventObject, ExtensionFunction, GeneratorObject, GraphObject,
        GraphPoolObject, HookObject, LbfgsObject, NodeObject, OptimizerObject, StreamObject, TensorObject,
        allow_tf32_in_convolutions, allow_tf32_in_products, asarray, attach_function, autocast_dtype, backward,
        can_access_peer, check_cuda_device, check_cuda_source, check_gradients, checkpoint, cuda_memory_info,
        cuda_properties, current_device, current_stream, default_generator, default_stream, device_count, dtype_named,
        enter_anomaly_mode, enter_autocast, enter_gradient_mode, enter_saved_tensors_hooks, enter_section, from_dlpack,
        frombuffer, get_default_dtype, grad, is_grad_enabled, is_in_backward, is_stream_capturing, leave_setting,
        load_extension, manual_seed, operation_functions, operation_table, promote_types, rebuild_tensor,
        set_default_dtype, set_device, set_gradient_mode, set_stream, simulate_devices, synchronize_device, tensor,
        tf32_in_convolutions, tf32_in_products, unscale_gradients, write_headers,
    };
    #[pymodule_export]
    use crate::torch::{torch_api, torch_background, torch_configure, torch_memory_fraction, torch_yield_to_libraries};
    #[pymodule_export]
    use crate::trace::Trace;

    #[pymodule_init]
    fn init(module: &pyo3::Bound<'_, pyo3::types::PyModule>) -> pyo3::PyResult<()> {
        crate::tensor::add_to(module)
    }
}

/// Serializes `value` as JSON.
fn json(value: &impl Serialize) -> PyResult<String> {
    serde_json::to_string(value).map_err(|error| complaint(error.to_string()))
}
