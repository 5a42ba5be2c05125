#include "memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <map>
#include <unordered_map>
#include <utility>

#include "device.h"

namespace simulated {

namespace {

/// The range of device addresses, far from where the system places anything by itself.
constexpr Address FIRST = 0x200000000000, LAST = 0x500000000000;

/// The time in which an H200 lets a range be accessed: idle, and under load.
constexpr Time ACCESS = 20000, BUSY_ACCESS = 250000;

struct Handle {
  std::shared_ptr<Chunk> chunk;
  int references;
};

Address next_address = FIRST;
std::map<Address, size_t> reservations;
std::map<Address, Mapping> mappings;
std::unordered_map<CUmemGenericAllocationHandle, Handle> handles;
CUmemGenericAllocationHandle next_handle = 1;

/// Raises the process's limit of open files: every chunk is one.
[[gnu::constructor]] void allow_many_files() {
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
  }
}

bool granular(size_t value) { return value && value % GRANULARITY == 0; }

size_t rounded(size_t bytes) { return (bytes + GRANULARITY - 1) / GRANULARITY * GRANULARITY; }

/// Reserves unused address space, without memory. Returns 0 if there is none left.
Address take_addresses(size_t bytes) {
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
  for (; next_address + bytes <= LAST; next_address += GRANULARITY) {
    void *taken = mmap(reinterpret_cast<void *>(next_address), bytes, PROT_NONE, flags, -1, 0);
    if (taken != MAP_FAILED)
      return std::exchange(next_address, next_address + rounded(bytes));
  }
  return 0;
}

/// Maps a chunk at addresses that are reserved already.
bool show(const Chunk &chunk, Address address, int protection) {
  return mmap(reinterpret_cast<void *>(address), chunk.bytes, protection, MAP_SHARED | MAP_FIXED, chunk.file, 0) !=
         MAP_FAILED;
}

/// Unmaps a range and keeps its addresses reserved.
void hide(Address address, size_t bytes) {
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
  mmap(reinterpret_cast<void *>(address), bytes, PROT_NONE, flags, -1, 0);
}

/// Returns whether a range is mapped, and `test` holds for each of its mappings.
template <class Test> bool all_mapped(Address address, size_t bytes, Test test) {
  std::lock_guard lock(state());
  for (Address at = address; at < address + bytes && is_on_device(at);) {
    Address start;
    const Mapping *mapping = mapping_at(at, &start);
    if (!mapping || !test(*mapping))
      return false;
    at = start + mapping->bytes;
  }
  return true;
}

CUmemGenericAllocationHandle name(std::shared_ptr<Chunk> chunk) {
  handles[next_handle] = {std::move(chunk), 1};
  return next_handle++;
}

/// Calls `action` with every mapping of a range, which must cover each of them whole and have no gap.
template <class Action> CUresult each_whole(Address address, size_t bytes, Action action) {
  for (Address at = address; at < address + bytes;) {
    const auto found = mappings.find(at);
    if (found == mappings.end() || found->second.segment || at + found->second.bytes > address + bytes)
      return CUDA_ERROR_INVALID_VALUE;
    at += found->second.bytes;
  }
  for (Address at = address; at < address + bytes;) {
    const auto found = mappings.find(at);
    at += found->second.bytes;
    action(found);
  }
  return CUDA_SUCCESS;
}

} // namespace

Chunk::~Chunk() {
  close(file);
  if (own)
    device->used -= bytes;
}

std::shared_ptr<Chunk> make_chunk(Device &device, size_t bytes) {
  if (device.used.fetch_add(bytes) + bytes > device.capacity) {
    device.used -= bytes;
    return nullptr;
  }
  const int file = memfd_create("simulated-cuda-memory", MFD_CLOEXEC);
  std::shared_ptr<Chunk> chunk(new Chunk{file, bytes, &device, true});
  return file >= 0 && ftruncate(file, off_t(bytes)) == 0 ? chunk : nullptr;
}

std::shared_ptr<Chunk> open_chunk(Device &device, int file) {
  struct stat status;
  if (file < 0 || fstat(file, &status) != 0)
    return nullptr;
  return std::shared_ptr<Chunk>(new Chunk{file, size_t(status.st_size), &device, false});
}

Address map_segment(std::shared_ptr<Chunk> chunk) {
  const Address address = take_addresses(chunk->bytes);
  if (!address || !show(*chunk, address, PROT_READ | PROT_WRITE))
    return 0;
  mappings[address] = {chunk->bytes, chunk, true, {}};
  return address;
}

Mapping *mapping_at(Address address, Address *start) {
  auto above = mappings.upper_bound(address);
  if (above == mappings.begin())
    return nullptr;
  auto &[first, mapping] = *--above;
  if (start)
    *start = first;
  return address < first + mapping.bytes ? &mapping : nullptr;
}

CUresult unmap_segment(Address start) {
  const auto found = mappings.find(start);
  if (found == mappings.end() || !found->second.segment)
    return CUDA_ERROR_INVALID_VALUE;
  hide(start, found->second.bytes);
  mappings.erase(found);
  return CUDA_SUCCESS;
}

bool Mapping::allows(const Device &user, int protection) const {
  const auto right = rights.find(&user);
  return segment || (right != rights.end() && (right->second & protection) == protection);
}

bool is_on_device(Address address) { return address >= FIRST && address < LAST; }

bool mapped(Address address, size_t bytes) {
  return all_mapped(address, bytes, [](const Mapping &) { return true; });
}

void check_access(const Device &user, Address address, size_t bytes, int protection) {
  if (!all_mapped(address, bytes, [&](const Mapping &mapping) { return mapping.allows(user, protection); }))
    throw IllegalAddress();
}

} // namespace simulated

using namespace simulated;

extern "C" {

CUresult cuMemGetAllocationGranularity(size_t *bytes, const CUmemAllocationProp *, CUmemAllocationGranularity_flags) {
  *bytes = GRANULARITY;
  return CUDA_SUCCESS;
}

CUresult cuMemAddressReserve(CUdeviceptr *address, size_t bytes, size_t, CUdeviceptr, unsigned long long) {
  if (!granular(bytes))
    return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(state());
  *address = take_addresses(bytes);
  if (!*address)
    return CUDA_ERROR_OUT_OF_MEMORY;
  reservations[*address] = bytes;
  return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes) {
  std::lock_guard lock(state());
  const auto found = reservations.find(address);
  const auto mapping = mappings.lower_bound(address);
  const bool mapped = mapping != mappings.end() && mapping->first < address + bytes;
  if (found == reservations.end() || found->second != bytes || mapped)
    return CUDA_ERROR_INVALID_VALUE;
  reservations.erase(found);
  return CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *properties,
                     unsigned long long) {
  Device *owner = device(properties->location.id);
  if (properties->requestedHandleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
    return CUDA_ERROR_NOT_SUPPORTED;
  if (!granular(bytes) || !owner)
    return CUDA_ERROR_INVALID_VALUE;
  const auto chunk = make_chunk(*owner, bytes);
  if (!chunk)
    return CUDA_ERROR_OUT_OF_MEMORY;
  std::lock_guard lock(state());
  *handle = name(chunk);
  return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  std::lock_guard lock(state());
  const auto found = handles.find(handle);
  if (found == handles.end())
    return CUDA_ERROR_INVALID_VALUE;
  if (--found->second.references == 0)
    handles.erase(found);
  return CUDA_SUCCESS;
}

CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long) {
  std::lock_guard lock(state());
  const auto found = handles.find(handle);
  auto reserved = reservations.upper_bound(address);
  const bool inside = reserved != reservations.begin() && (--reserved, address + bytes <= reserved->first + reserved->second);
  const auto above = mappings.lower_bound(address);
  const bool taken = mapping_at(address) || (above != mappings.end() && above->first < address + bytes);
  if (found == handles.end() || !inside || taken || offset || bytes != found->second.chunk->bytes)
    return CUDA_ERROR_INVALID_VALUE;
  if (!show(*found->second.chunk, address, PROT_NONE))
    return CUDA_ERROR_OUT_OF_MEMORY;
  mappings[address] = {bytes, found->second.chunk, false, {}};
  return CUDA_SUCCESS;
}

CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
  std::lock_guard lock(state());
  return each_whole(address, bytes, [](auto mapping) {
    hide(mapping->first, mapping->second.bytes);
    mappings.erase(mapping);
  });
}

CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *access, size_t count) {
  std::map<const Device *, int> rights;
  for (size_t i = 0; i < count; ++i) {
    const Device *user = device(access[i].location.id);
    if (!user || access[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE)
      return CUDA_ERROR_INVALID_DEVICE;
    int &right = rights[user] = PROT_NONE;
    if (access[i].flags & CU_MEM_ACCESS_FLAGS_PROT_READ)
      right |= PROT_READ;
    if (access[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
      right |= PROT_WRITE;
  }
  if (slowness() != 0) {
    const bool is_busy = device_done_at(*device(0)) > now();
    sleep_until(now() + (is_busy ? BUSY_ACCESS : ACCESS));
  }
  std::lock_guard lock(state());
  return each_whole(address, bytes, [&rights](auto found) {
    auto &[start, mapping] = *found;
    // Devices that are not named keep their rights. The host may do what any device may.
    for (const auto &[user, right] : rights)
      mapping.rights[user] = right;
    int protection = PROT_NONE;
    for (const auto &[_, right] : mapping.rights)
      protection |= right;
    mprotect(reinterpret_cast<void *>(start), mapping.bytes, protection);
  });
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address) {
  std::lock_guard lock(state());
  const Mapping *mapping = mapping_at(reinterpret_cast<Address>(address));
  if (!mapping || mapping->segment)
    return CUDA_ERROR_INVALID_VALUE;
  for (auto &[id, known] : handles) {
    if (known.chunk == mapping->chunk) {
      ++known.references;
      *handle = id;
      return CUDA_SUCCESS;
    }
  }
  *handle = name(mapping->chunk);
  return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *properties, CUmemGenericAllocationHandle handle) {
  std::lock_guard lock(state());
  const auto found = handles.find(handle);
  if (found == handles.end())
    return CUDA_ERROR_INVALID_VALUE;
  *properties = {};
  properties->type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties->requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties->location = {CU_MEM_LOCATION_TYPE_DEVICE, {found->second.chunk->device->number}};
  return CUDA_SUCCESS;
}

CUresult cuMemExportToShareableHandle(void *file, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
                                      unsigned long long) {
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
    return CUDA_ERROR_NOT_SUPPORTED;
  std::lock_guard lock(state());
  const auto found = handles.find(handle);
  if (found == handles.end())
    return CUDA_ERROR_INVALID_VALUE;
  *static_cast<int *>(file) = fcntl(found->second.chunk->file, F_DUPFD_CLOEXEC, 0);
  return *static_cast<int *>(file) < 0 ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *file,
                                        CUmemAllocationHandleType type) {
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
    return CUDA_ERROR_NOT_SUPPORTED;
  Device *user = current_device();
  const int given = int(reinterpret_cast<intptr_t>(file));
  const auto chunk = user ? open_chunk(*user, fcntl(given, F_DUPFD_CLOEXEC, 0)) : nullptr;
  if (!chunk)
    return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(state());
  *handle = name(chunk);
  return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange(CUdeviceptr *base, size_t *bytes, CUdeviceptr address) {
  std::lock_guard lock(state());
  Address start;
  const Mapping *mapping = mapping_at(address, &start);
  if (!mapping)
    return CUDA_ERROR_INVALID_VALUE;
  *base = start;
  *bytes = mapping->bytes;
  return CUDA_SUCCESS;
}

CUresult cuMemGetInfo(size_t *free, size_t *total) {
  const Device *device = current_device();
  if (!device)
    return CUDA_ERROR_NO_DEVICE;
  *total = device->capacity;
  *free = device->capacity - device->used;
  return CUDA_SUCCESS;
}

cudaError_t cudaMemGetInfo(size_t *free, size_t *total) { return noted(cuMemGetInfo(free, total)); }

} // extern "C"
