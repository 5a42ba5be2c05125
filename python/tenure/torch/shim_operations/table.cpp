// The functions of tenure_operations.h.

#include "tenure_operations.h"

#include <ATen/SequenceNumber.h>
#include <c10/core/Allocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>

#include <memory>
#include <string>

#include "hooks.h"
#include "recorder.h"
#include "saved.h"

struct _object;
// Declared here, as nothing else of PyTorch's Python interface is needed.
_object *THPVariable_Wrap(const at::TensorBase &tensor);

namespace tenure {

namespace {

c10::Device device_of(int index) {
  return index < 0 ? c10::Device(c10::kCPU) : c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(index));
}

std::string &error() {
  thread_local std::string message;
  return message;
}

/// Returns the result of `body`; null if it throws, with the message in error().
template <typename Body> auto told(Body body) noexcept -> decltype(body()) {
  try {
    return body();
  } catch (const c10::Error &failure) {
    error() = failure.what_without_backtrace();
  } catch (const std::exception &failure) {
    error() = failure.what();
  } catch (...) {
    error() = "something was thrown that is no error";
  }
  return nullptr;
}

template <typename Of, typename Handle> Of *as(Handle *handle) { return reinterpret_cast<Of *>(handle); }

/// The target of a recorder's handle: threads that are recorded share it.
using Shared = std::shared_ptr<Recorder>;

at::Tensor tensor_at(const void *tensor) {
  auto *impl = static_cast<c10::TensorImpl *>(const_cast<void *>(tensor));
  return at::Tensor(c10::intrusive_ptr<c10::TensorImpl>::reclaim_copy(impl));
}

const char *last_error() { return error().c_str(); }

tenure_recorder *new_recorder(int index, tenure_listener listener) {
  return told([&] { return as<tenure_recorder>(new Shared(std::make_shared<Recorder>(device_of(index), listener))); });
}

void drop_recorder(tenure_recorder *recorder) { delete as<Shared>(recorder); }

void begin(tenure_recorder *recorder, const uintptr_t *staying, size_t count) {
  (*as<Shared>(recorder))->begin(staying, count);
}

void listen(tenure_recorder *recorder, uint64_t from) {
  Recorder::listen(recorder == nullptr ? nullptr : *as<Shared>(recorder), from);
}

int64_t sequence() {
  const bool is_backward = torch::autograd::get_current_graph_task_id() != -1;
  return is_backward || !Hooks::any() ? -1 : static_cast<int64_t>(at::sequence_number::peek());
}

int64_t node_sequence() {
  const auto node = torch::autograd::get_current_node();
  // The nodes that collect gradients have the largest number, which is negative here.
  return node ? static_cast<int64_t>(node->sequence_nr()) : -1;
}

/// The target of a handle of hooks: the thread that has entered them shares it.
using SharedHooks = std::shared_ptr<Hooks>;

tenure_hooks *enter_hooks(void *pack, void *unpack) {
  return told([&] {
    return as<tenure_hooks>(new SharedHooks(Hooks::enter(static_cast<PyObject *>(pack), static_cast<PyObject *>(unpack))));
  });
}

void leave_hooks(tenure_hooks *hooks) {
  told([&] { return (*as<SharedHooks>(hooks))->leave(), hooks; });
}

void set_hooks(tenure_hooks *hooks, bool on) {
  told([&] { return (*as<SharedHooks>(hooks))->set(on), hooks; });
}

void suspend_hooks(tenure_hooks *hooks, bool is_suspended) {
  told([&] { return (*as<SharedHooks>(hooks))->suspend(is_suspended), hooks; });
}

void set_only_hooks(bool on) {
  told([&] { return Hooks::set_only(on), &on; });
}

void drop_hooks(tenure_hooks *hooks) { delete as<SharedHooks>(hooks); }

void *run(const tenure_call *call, size_t made, void *const *storages, tenure_bytes *bytes) {
  return told([&] {
    const c10::impl::ExcludeDispatchKeyGuard inside(kKey);
    auto tensor = as<const Call>(call)->run(made, storages);
    *bytes = bytes_of(tensor);
    return static_cast<void *>(tensor.unsafeReleaseTensorImpl());
  });
}

void drop_call(tenure_call *call) { delete as<Call>(call); }

void drop_tensor(void *tensor) { c10::intrusive_ptr<c10::TensorImpl>::reclaim(static_cast<c10::TensorImpl *>(tensor)); }

tenure_look look(const tenure_recorder *recorder, const void *tensor) {
  tenure_look look{};
  told([&] { return look = (*as<const Shared>(recorder))->look(tensor_at(tensor)), recorder; });
  return look;
}

const char *name(const void *tensor) {
  thread_local std::string name;
  const char *text = told([&] { return (name = name_of(tensor_at(tensor))).c_str(); });
  return text == nullptr ? last_error() : text;
}

tenure_saved *save(const void *tensor, bool is_without_bytes) {
  return told([&] { return as<tenure_saved>(new Saved(tensor_at(tensor), is_without_bytes)); });
}

const char *modified(const tenure_saved *saved) {
  auto words = as<const Saved>(saved)->modified();
  if (!words)
    return nullptr;
  error() = std::move(*words);
  return last_error();
}

void *restore(const tenure_saved *saved, void *storage) {
  return told([&] {
    auto *impl = static_cast<c10::StorageImpl *>(storage);
    auto on = storage == nullptr ? c10::Storage() : c10::Storage(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(impl));
    return static_cast<void *>(THPVariable_Wrap(as<const Saved>(saved)->restored(std::move(on))));
  });
}

void drop_saved(tenure_saved *saved) { delete as<Saved>(saved); }

void *stream(int index) { return handle_of(stream_of(device_of(index))); }

void *new_storage(int index, size_t bytes) {
  return told([&] {
    const auto device = device_of(index);
    const c10::OptionalDeviceGuard on(device);
    auto *allocator = c10::GetAllocator(device.type());
    return static_cast<void *>(
        c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes, allocator, true).release());
  });
}

void drop_storage(void *storage) {
  c10::intrusive_ptr<c10::StorageImpl>::reclaim(static_cast<c10::StorageImpl *>(storage));
}

bool exchange(const void *tensor, void *storage) {
  return told([&]() -> void * {
    auto *first = tensor_at(tensor).storage().unsafeGetStorageImpl(), *second = static_cast<c10::StorageImpl *>(storage);
    TORCH_CHECK(first->nbytes() == second->nbytes() && first->device() == second->device(), "the storages differ in size");
    second->set_data_ptr_noswap(first->set_data_ptr(std::move(second->mutable_data_ptr())));
    return storage;
  }) != nullptr;
}

constexpr tenure_operations table{sizeof(tenure_operations),
                                  last_error,
                                  new_recorder,
                                  drop_recorder,
                                  begin,
                                  listen,
                                  sequence,
                                  node_sequence,
                                  enter_hooks,
                                  leave_hooks,
                                  set_hooks,
                                  suspend_hooks,
                                  set_only_hooks,
                                  drop_hooks,
                                  run,
                                  drop_call,
                                  drop_tensor,
                                  look,
                                  name,
                                  save,
                                  modified,
                                  restore,
                                  drop_saved,
                                  stream,
                                  new_storage,
                                  drop_storage,
                                  exchange};

} // namespace

} // namespace tenure

extern "C" __attribute__((visibility("default"))) const tenure_operations *tenure_operations_table() {
  return &tenure::table;
}
