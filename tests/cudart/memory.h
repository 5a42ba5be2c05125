// Device memory: chunks, which are files in memory, and their mappings.
//
// Addresses are real, so that the host can copy from and to them, and none is given twice. Pages take memory when they
// are first written. A chunk that is mapped twice has the same bytes in both places.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

namespace simulated {

struct Device;

using Address = uintptr_t;

constexpr size_t GRANULARITY = 2 << 20;

struct Chunk {
  int file;
  size_t bytes;
  Device *device;
  /// Whether it counts as used memory of the device: a chunk that another process made does not.
  bool own;

  ~Chunk();
};

struct Mapping {
  size_t bytes;
  std::shared_ptr<Chunk> chunk;
  /// Whether `cuMemAlloc` or another process's handle mapped it, and not a mapping into reserved space.
  bool segment;
  /// The rights of each device there, as for mprotect. Any device may copy from and to a segment, through the host if
  /// it must.
  std::map<const Device *, int> rights;

  bool allows(const Device &user, int protection) const;
};

/// Makes a chunk of `bytes` bytes; null if the device has no room for it.
std::shared_ptr<Chunk> make_chunk(Device &device, size_t bytes);

/// Makes the chunk in a file of this or another process.
std::shared_ptr<Chunk> open_chunk(Device &device, int file);

/// Maps a chunk at unused addresses, to be read and written. Needs the state's lock.
Address map_segment(std::shared_ptr<Chunk> chunk);

/// Returns the mapping around `address`, and its start; null if there is none. Needs the state's lock.
Mapping *mapping_at(Address address, Address *start = nullptr);

/// Unmaps a segment. Needs the state's lock.
CUresult unmap_segment(Address start);

/// Returns whether an address belongs to devices.
bool is_on_device(Address address);

/// Returns whether all of a range is mapped. Addresses outside of the devices' range count as mapped.
bool mapped(Address address, size_t bytes);

/// Checks a range before a device's work touches it: throws IllegalAddress unless all of it is mapped with this
/// protection (as for mprotect).
void check_access(const Device &user, Address address, size_t bytes, int protection);

} // namespace simulated
