#include "tensor.h"

#include <dlfcn.h>

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/Allocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <utility>

namespace tenure {

namespace {

/// The dispatch keys of tensors that are more than bytes in a storage.
constexpr c10::DispatchKeySet kSeeming{
    c10::DispatchKey::Python,           c10::DispatchKey::Functionalize, c10::DispatchKey::FuncTorchGradWrapper,
    c10::DispatchKey::FuncTorchBatched, c10::DispatchKey::Batched,       c10::DispatchKey::Conjugate,
    c10::DispatchKey::Negative,         c10::DispatchKey::ZeroTensor,    c10::DispatchKey::NestedTensor,
    c10::DispatchKey::Quantized};

c10::DispatchKeySet key_of(c10::Device device) {
  return c10::DispatchKeySet(device.is_cpu() ? c10::DispatchKey::CPU : c10::DispatchKey::CUDA);
}

template <typename Stream> auto native_handle_of(const Stream &stream, int) -> decltype(stream.native_handle()) {
  return stream.native_handle();
}

/// Returns a stream's handle in older versions, where c10::Stream does not have it but CUDA's own class does, which has
/// no other fields. Its library is loaded where there is CUDA.
template <typename Stream> void *native_handle_of(const Stream &stream, long) {
  static void *const library = dlopen("libc10_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
  static void *const found = library == nullptr ? nullptr : dlsym(library, "_ZNK3c104cuda10CUDAStream6streamEv");
  TORCH_CHECK(found != nullptr, "this PyTorch does not give the CUDA handles of its streams");
  return reinterpret_cast<void *(*)(const Stream *)>(found)(&stream);
}

} // namespace

tenure_bytes bytes_of(const at::Tensor &tensor) {
  const auto &storage = tensor.storage();
  return {reinterpret_cast<uintptr_t>(storage.data()), storage.nbytes(), static_cast<uint64_t>(tensor._version())};
}

bool is_plain(const at::Tensor &tensor) {
  return tensor.defined() && tensor.layout() == c10::kStrided && tensor.unsafeGetTensorImpl()->has_storage() &&
         !tensor.is_inference() && !tensor.key_set().has_any(kSeeming) &&
         !tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides();
}

Layout Layout::by(const at::Tensor &tensor) {
  return {tensor.dtype(), tensor.storage_offset(), tensor.sizes().vec(), tensor.strides().vec()};
}

bool Layout::operator==(const Layout &other) const {
  bool is_same = dtype == other.dtype && offset == other.offset && sizes == other.sizes;
  for (size_t at = 0; is_same && at < sizes.size(); ++at)
    is_same = sizes[at] <= 1 || strides[at] == other.strides[at];
  return is_same;
}

at::Tensor Layout::of(c10::Storage storage) const {
  const auto key = key_of(storage.device());
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), key, dtype);
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
  return tensor;
}

at::Tensor Layout::unfilled(c10::Device device) const {
  const c10::OptionalDeviceGuard on(device);
  const auto bytes = c10::multiply_integers(sizes) * dtype.itemsize();
  return of(c10::Storage(c10::Storage::use_byte_size_t(), bytes, c10::GetAllocator(device.type()), true));
}

at::Tensor Layout::without_bytes(c10::Device device) const {
  return of(c10::Storage(c10::Storage::use_byte_size_t(), 0, c10::DataPtr(nullptr, device)));
}

at::Tensor alias_of(const at::Tensor &tensor) {
  // Excluded because Python dispatch modes would otherwise see the copy.
  const c10::impl::ExcludeDispatchKeyGuard inside(c10::DispatchKey::Python);
  auto *impl = tensor.unsafeGetTensorImpl();
  return at::Tensor(impl->shallow_copy_and_detach(impl->version_counter(), false));
}

at::Tensor copy_of(const at::Tensor &tensor) {
  const at::AutoDispatchBelowADInplaceOrView no_gradients;
  const c10::impl::ExcludeDispatchKeyGuard inside(c10::DispatchKeySet({c10::DispatchKey::Python, kKey}));
  const c10::OptionalDeviceGuard on(tensor.device());
  const auto bytes = tensor.storage().nbytes();
  c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, c10::GetAllocator(tensor.device().type()), true);
  auto copy = Layout::by(tensor).of(std::move(storage));
  return copy.copy_(tensor);
}

at::Tensor counter_of(const at::Tensor &tensor) {
  at::Tensor counter = at::detail::make_tensor<c10::TensorImpl>(key_of(tensor.device()), tensor.dtype(), tensor.device());
  counter.unsafeGetTensorImpl()->set_version_counter(tensor.unsafeGetTensorImpl()->version_counter());
  return counter;
}

c10::Stream stream_of(c10::Device device) {
  return c10::impl::getDeviceGuardImpl(device.type())->getStream(device);
}

void *handle_of(c10::Stream stream) { return stream.device().is_cpu() ? nullptr : native_handle_of(stream, 0); }

} // namespace tenure
