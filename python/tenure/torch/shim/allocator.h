// PyTorch's allocator of CUDA memory, implemented by Tenure's.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "api.h"
#include "version.h"

namespace tenure {

/// The allocator. Each virtual function of PyTorch's CUDAAllocator calls Tenure's table and converts the results.
class Allocator final : public Interface {
public:
  // allocator.cpp: blocks
  c10::DataPtr allocate(size_t bytes) override;
  c10::DeleterFnPtr raw_deleter() const override;
  void *raw_alloc(size_t bytes) override;
  void *raw_alloc_with_stream(size_t bytes, cudaStream_t stream) override;
  void raw_delete(void *address) override;
  using CUDAAllocator::recordStream;
  void recordStream(const c10::DataPtr &data, c10::cuda::CUDAStream stream) override;
  void *getBaseAllocation(void *address, size_t *bytes) override;
  void init(int device_count) override;
  bool initialized() override;
  void enable(bool value) override;
  bool isEnabled() const override;

  // settings.cpp: PyTorch's own settings
  std::string name() override;

  // figures.cpp: statistics and limits
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex device) override;
  void resetAccumulatedStats(DeviceIndex device) override;
  void resetPeakStats(DeviceIndex device) override;
  double getMemoryFraction(DeviceIndex device) override;
  void setMemoryFraction(double fraction, DeviceIndex device) override;
  void cacheInfo(DeviceIndex device, size_t *largest) override;
  void attachOutOfMemoryObserver(caching::OutOfMemoryObserver observer) override;
  void attachOomRejectionObserver(RejectionObserver observer) override;
  std::vector<StreamSegmentSize> getExpandableSegmentSizes(DeviceIndex device) override;

  // snapshot.cpp: the present state
  caching::SnapshotInfo snapshot(MempoolId_t pool, bool include_traces) override;

  // history.cpp: past events
  bool isHistoryEnabled() override;
  void recordHistory(bool enabled, caching::CreateContextFn recorder, size_t max_entries, caching::RecordContext when,
                     bool clear, const std::vector<std::string> &skip_actions) override;
  void recordAnnotation(const std::vector<std::pair<std::string, std::string>> &metadata) override;
  void pushCompileContext(std::string &context) override;
  void popCompileContext() override;
  void setUserMetadata(const std::string &metadata) override;
  std::string getUserMetadata() override;
  void attachAllocatorTraceTracker(caching::AllocatorTraceTracker tracker) override;
  std::shared_ptr<c10::GatheredContext> getContextForPointer(const void *address) override;
  void annotateMemory(const void *address, const std::string &metadata) override;

  // pools.cpp: private pools
  void emptyCache(MempoolId_t pool) override;
  void beginAllocateToPool(DeviceIndex device, MempoolId_t pool, std::function<bool(cudaStream_t)> filter) override;
  void markCaptureBegin(DeviceIndex device) override;
  void markCaptureEnd(DeviceIndex device) override;
  void endAllocateToPool(DeviceIndex device, MempoolId_t pool) override;
  void releasePool(DeviceIndex device, MempoolId_t pool) override;
  int getPoolUseCount(DeviceIndex device, MempoolId_t pool) override;
  void createOrIncrefPool(DeviceIndex device, MempoolId_t pool, std::shared_ptr<CUDAAllocator> source) override;
  void setUseOnOOM(DeviceIndex device, MempoolId_t pool, bool use_on_oom) override;
  void setNoSplit(DeviceIndex device, MempoolId_t pool) override;
  bool checkPoolLiveAllocations(DeviceIndex device, MempoolId_t pool,
                                const std::unordered_set<void *> &expected) override;
  std::shared_ptr<caching::AllocatorState> getCheckpointState(DeviceIndex device, MempoolId_t pool) override;
  caching::CheckpointDelta setCheckpointPoolState(DeviceIndex device,
                                                  std::shared_ptr<caching::AllocatorState> state) override;

  // sharing.cpp: other devices and processes
  caching::ShareableHandle shareIpcHandle(void *address) override;
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override;
  void enablePeerAccess(DeviceIndex device, DeviceIndex accessed) override;
  cudaError_t memcpyAsync(void *target, int target_device, const void *source, int source_device, size_t bytes,
                          cudaStream_t stream, bool p2p_enabled) override;
  void copy_data(void *target, const void *source, size_t bytes) const override;

private:
  void *allocate_on(DeviceIndex device, size_t bytes, cudaStream_t stream);
  void check_device(DeviceIndex device) const;

  std::atomic<int> device_count_{0};
  std::atomic<bool> enabled_{true};
};

// pools.cpp

/// Whether the uses of private pools end by captures that have failed. PyTorch's own policy leaves them before 2.13.
extern bool ends_failed_captures;

/// Ends such uses. Returns whether there were some.
bool end_failed_captures();

// settings.cpp

/// Makes PyTorch read its settings. Throws if it refuses them.
void read_settings();

/// Applies PyTorch's settings to Tenure.
void apply_settings();

/// Applies the settings again at every change from now on.
void follow_settings();

// figures.cpp

/// Returns a figure in PyTorch's form.
c10::CachingAllocator::Stat stat_of(const tenure_stat &stat);

// pinned.cpp

/// Puts Tenure's allocator of pinned memory under PyTorch.
void install_pinned();

/// Frees a block. The deleter of every block.
void release(void *address);

/// Returns the stack trace for a block or event, if `level` asks for one.
tenure_object gather(caching::RecordContext level);

} // namespace tenure
