// Private pools.

#include "allocator.h"

#include <c10/cuda/CUDAGraphsC10Utils.h>

#include <algorithm>
#include <functional>
#include <mutex>

namespace tenure {

namespace {

using Filter = std::function<bool(cudaStream_t)>;
using Source = std::shared_ptr<caching::CUDAAllocator>;

tenure_pool pool_of(MempoolId_t id) { return {id.first, id.second}; }

/// A use of a pool, from beginAllocateToPool() to endAllocateToPool().
struct Begun {
  int device;
  tenure_pool pool;
};

/// The pool use that this thread began last: PyTorch begins one right before the capture that it is for.
thread_local Begun begun_last{};

/// The captures that this thread began and has not ended, the last one last, if PyTorch marks captures.
thread_local std::vector<Begun> captured;

/// The captures of all threads that have not ended, for a PyTorch that does not mark them. When a capture is invalid,
/// such a PyTorch does not end the use of its pool, and the allocator would take it to be underway for ever.
class Unmarked {
public:
  void add(Begun begun, cudaStream_t stream) {
    const std::lock_guard<std::mutex> lock(mutex_);
    underway_.push_back({begun, stream, &here()});
  }

  void remove(int device, tenure_pool pool) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto is_it = [&](const Underway &each) { return each.begun.device == device && same(each.begun.pool, pool); };
    underway_.erase(std::remove_if(underway_.begin(), underway_.end(), is_it), underway_.end());
  }

  /// Ends the uses of pools whose captures are over. Only the thread that began a capture can tell, or any when that
  /// thread is gone: PyTorch itself ends a capture before it ends the use of the pool. Returns whether there were some.
  bool end_failed() {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto is_over = [](const Underway &each) {
      if (each.thread != nullptr && each.thread != &here())
        return false;
      cudaStreamCaptureStatus status = cudaStreamCaptureStatusActive;
      if (cudaStreamIsCapturing(each.stream, &status) != cudaSuccess)
        cudaGetLastError();
      return status == cudaStreamCaptureStatusNone;
    };
    const auto first = std::stable_partition(underway_.begin(), underway_.end(), std::not_fn(is_over));
    const bool any = first != underway_.end();
    for (auto each = first; each != underway_.end(); ++each) {
      // There is no graph that would give up its use of the pool later.
      if (api->end_pool(each->begun.device, each->begun.pool) == TENURE_OK)
        api->release_pool(each->begun.device, each->begun.pool);
      api->end_pinned_pool(each->begun.pool);
      api->release_pinned_pool(each->begun.pool);
    }
    underway_.erase(first, underway_.end());
    return any;
  }

private:
  /// Something of which each thread has its own.
  struct Here {
    ~Here();
  };

  struct Underway {
    Begun begun;
    cudaStream_t stream;
    /// The thread that began it. NULL if that is gone.
    const Here *thread;
  };

  static bool same(tenure_pool left, tenure_pool right) {
    return left.first == right.first && left.second == right.second;
  }

  static const Here &here() {
    static thread_local const Here it{};
    return it;
  }

  std::mutex mutex_;
  std::vector<Underway> underway_;
};

Unmarked &unmarked() {
  static auto &it = *new Unmarked;
  return it;
}

Unmarked::Here::~Here() {
  const std::lock_guard<std::mutex> lock(unmarked().mutex_);
  for (auto &each : unmarked().underway_)
    if (each.thread == this)
      each.thread = nullptr;
}

/// A checkpoint of a pool, in the form in which PyTorch holds one.
struct Checkpoint final : caching::AllocatorState {
  explicit Checkpoint(tenure_checkpoint *it) : it(it) {}
  ~Checkpoint() override { api->drop_checkpoint(it); }
  Checkpoint(const Checkpoint &) = delete;
  Checkpoint &operator=(const Checkpoint &) = delete;

  tenure_checkpoint *it;
};

/// Allocates a segment from a program's own allocator. Returns NULL if that throws, as it does when out of memory.
void *allocate_from(void *source, size_t bytes, void *stream) {
  const auto call = [&] {
    // The allocator may call cudaMalloc, which would break a capture.
    const c10::cuda::CUDAStreamCaptureModeGuard guard(cudaStreamCaptureModeRelaxed);
    return value_of<Source>(source)->raw_alloc_with_stream(bytes, static_cast<cudaStream_t>(stream));
  };
  return shielded(call, static_cast<void *>(nullptr));
}

void free_to(void *source, void *address, size_t, void *) {
  warned("the allocator of a private pool failed to free a segment", [&] {
    const c10::cuda::CUDAStreamCaptureModeGuard guard(cudaStreamCaptureModeRelaxed);
    value_of<Source>(source)->raw_delete(address);
  });
}

} // namespace

bool ends_failed_captures = false;

bool end_failed_captures() { return ends_failed_captures && unmarked().end_failed(); }

void Allocator::emptyCache(MempoolId_t pool) {
  end_failed_captures();
  for (int device = 0; device < device_count_; device++)
    if (api->is_open(device))
      check(api->release_cached(device, pool_of(pool), gather(caching::RecordContext::ALL)));
}

void Allocator::createOrIncrefPool(DeviceIndex device, MempoolId_t pool, Source source) {
  check_device(device);
  // A program may pass the installed allocator, which is this one.
  if (source == nullptr || source.get() == this)
    return check(api->create_pool(device, pool_of(pool), nullptr));
  const tenure_pool_source own{hand_over(std::move(source)), allocate_from, free_to};
  check(api->create_pool(device, pool_of(pool), &own));
}

void Allocator::releasePool(DeviceIndex device, MempoolId_t pool) {
  check_device(device);
  check(api->release_pool(device, pool_of(pool)));
}

int Allocator::getPoolUseCount(DeviceIndex device, MempoolId_t pool) {
  check_device(device);
  size_t uses = 0;
  check(api->pool_uses(device, pool_of(pool), &uses));
  return static_cast<int>(uses);
}

void Allocator::beginAllocateToPool(DeviceIndex device, MempoolId_t pool, Filter filter) {
  check_device(device);
  const auto passes = [](void *user, void *stream) {
    const auto call = [&] { return value_of<Filter>(user)(static_cast<cudaStream_t>(stream)); };
    return shielded(call, false);
  };
  end_failed_captures();
  constexpr bool may_capture = !marks_captures<caching::CUDAAllocator>(0);
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(device);
  // The filter of a capture lets its stream pass once that is captured, and it is not yet.
  const bool captures = may_capture && !filter(stream);
  check(api->begin_pool(device, pool_of(pool), may_capture, passes, hand_over(std::move(filter))));
  begun_last = {device, pool_of(pool)};
  if (captures)
    unmarked().add(begun_last, stream);
}

void Allocator::markCaptureBegin(DeviceIndex device) {
  check_device(device);
  captured.push_back(begun_last);
  check(api->set_capturing(begun_last.device, begun_last.pool, true));
}

void Allocator::markCaptureEnd(DeviceIndex device) {
  check_device(device);
  // If another thread began the capture, it ends with the use of its pool.
  if (captured.empty())
    return;
  const Begun ended = captured.back();
  captured.pop_back();
  check(api->set_capturing(ended.device, ended.pool, false));
}

void Allocator::endAllocateToPool(DeviceIndex device, MempoolId_t pool) {
  check_device(device);
  unmarked().remove(device, pool_of(pool));
  check(api->end_pool(device, pool_of(pool)));
}

void Allocator::setUseOnOOM(DeviceIndex device, MempoolId_t pool, bool use_on_oom) {
  check_device(device);
  check(api->use_pool_on_oom(device, pool_of(pool), use_on_oom));
}

void Allocator::setNoSplit(DeviceIndex device, MempoolId_t pool) {
  check_device(device);
  check(api->set_no_split(device, pool_of(pool)));
}

bool Allocator::checkPoolLiveAllocations(DeviceIndex device, MempoolId_t pool,
                                         const std::unordered_set<void *> &expected) {
  check_device(device);
  std::unordered_set<void *> live;
  const auto add = [](void *live, void *address) {
    shielded([&] { value_of<std::unordered_set<void *>>(live).insert(address); });
  };
  check_told(api->live_blocks(device, pool_of(pool), add, &live));
  return live == expected;
}

std::shared_ptr<caching::AllocatorState> Allocator::getCheckpointState(DeviceIndex device, MempoolId_t pool) {
  check_device(device);
  tenure_checkpoint *checkpoint = nullptr;
  check(api->checkpoint(device, pool_of(pool), &checkpoint));
  return std::make_shared<Checkpoint>(checkpoint);
}

caching::CheckpointDelta Allocator::setCheckpointPoolState(DeviceIndex device,
                                                           std::shared_ptr<caching::AllocatorState> state) {
  check_device(device);
  const auto checkpoint = std::dynamic_pointer_cast<Checkpoint>(state);
  TORCH_CHECK(checkpoint != nullptr, "a checkpoint of another allocator cannot be restored here");
  struct Told {
    caching::CheckpointDelta delta;
    c10::Device device;
  } told{{}, {c10::kCUDA, device}};
  const auto freed = [](void *told, void *address) {
    shielded([&] { value_of<Told>(told).delta.ptrs_freed.push_back(address); });
  };
  const auto allocated = [](void *user, void *address) {
    auto &told = value_of<Told>(user);
    shielded([&] { told.delta.dataptrs_allocd.emplace_back(address, address, &release, told.device); });
  };
  check_told(api->restore(device, checkpoint->it, freed, allocated, &told));
  return std::move(told.delta);
}

} // namespace tenure
