// Device memory: chunks, which are files in memory, and where they are mapped.
//
// Addresses are real, so that the host can copy from and to them, and none is given twice. Pages are taken when they
// are first written. A chunk that is mapped twice shows the same bytes twice.
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
  /// Whether it counts as used memory of the device: what another process made does not.
  bool own;

  ~Chunk();
};

struct Mapping {
  size_t bytes;
  std::shared_ptr<Chunk> chunk;
  /// Mapped by `cuMemAlloc` or from another process, not into reserved space.
  bool segment;
  /// What each device may do there, as of mprotect. A segment is any device's to copy from and to, by way of the host
  /// if need be.
  std::map<const Device *, int> rights;

  bool allows(const Device &user, int protection) const;
};

/// A chunk of `bytes` bytes; null if the device has no room for it.
std::shared_ptr<Chunk> make_chunk(Device &device, size_t bytes);

/// The chunk in a file of this or another process.
std::shared_ptr<Chunk> open_chunk(Device &device, int file);

/// Maps a chunk where nothing is, to be read and written. Needs the state's lock.
Address map_segment(std::shared_ptr<Chunk> chunk);

/// The mapping that `address` lies in, and its start; null if there is none. Needs the state's lock.
Mapping *mapping_at(Address address, Address *start = nullptr);

/// Ends a mapping that is a segment. Needs the state's lock.
CUresult unmap_segment(Address start);

/// Whether an address is one of a device's.
bool is_on_device(Address address);

/// Whether all of a range is mapped: of addresses that are no device's, that is assumed.
bool mapped(Address address, size_t bytes);

/// What work of a device does before it touches a range: throws IllegalAddress unless all of it is mapped for this (as
/// of mprotect).
void check_access(const Device &user, Address address, size_t bytes, int protection);

} // namespace simulated
