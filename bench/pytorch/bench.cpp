// Loops over two allocators, PyTorch's and Tenure's, which are timed inside. `bench.py` builds and calls them.
//
// Each function returns the nanoseconds for a pair of an allocation and a free; in `threads`, for each thread. Compiled
// with -DWITHOUT_PYTORCH, it has Tenure's allocator only, and streams are numbers, as on the simulated device.

#include <dlfcn.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <thread>
#include <vector>

#include "tenure.h"

#ifndef WITHOUT_PYTORCH
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#endif

namespace {

using Clock = std::chrono::steady_clock;

constexpr int device = 0;

[[noreturn]] void fail(const char *what) {
    std::fprintf(stderr, "%s\n", what);
    std::abort();
}

// --- The two allocators, with one interface -------------------------------------------------------------------------

struct Tenure {
    decltype(&tenure_open) open;
    decltype(&tenure_alloc) alloc_fn;
    decltype(&tenure_free) free_fn;
    decltype(&tenure_record_stream) record_fn;
    decltype(&tenure_empty_cache) empty_fn;
    decltype(&tenure_last_error) last_error;

    void *alloc(size_t bytes, void *stream) const {
        void *block;
        check(alloc_fn(device, bytes, stream, &block));
        return block;
    }
    void free(void *block) const { check(free_fn(device, block)); }
    void free_recorded(void *block, int stream) const;
    void empty_cache() const { check(empty_fn(device)); }
    void check(tenure_status status) const {
        if (status != TENURE_OK) fail(last_error());
    }
};

Tenure tenure;

#ifdef WITHOUT_PYTORCH

void use_device() {}
void *stream(int number) { return reinterpret_cast<void *>(static_cast<uintptr_t>(number + 16)); }

#else

void use_device() { c10::cuda::set_device(device); }

// Both allocators get PyTorch's streams.
const c10::cuda::CUDAStream &torch_stream(int number) {
    static const std::vector<c10::cuda::CUDAStream> streams = [] {
        std::vector<c10::cuda::CUDAStream> pool;
        for (int i = 0; i < 32; i++) pool.push_back(c10::cuda::getStreamFromPool(false, device));
        return pool;
    }();
    return streams[number];
}
void *stream(int number) { return torch_stream(number).stream(); }

struct PyTorch {
    void *alloc(size_t bytes, void *stream) const {
        return c10::cuda::CUDACachingAllocator::raw_alloc_with_stream(bytes, static_cast<cudaStream_t>(stream));
    }
    void free(void *block) const { c10::cuda::CUDACachingAllocator::raw_delete(block); }
    // Frees as a tensor does, through a DataPtr.
    void free_recorded(void *block, int stream) const {
        auto *allocator = c10::cuda::CUDACachingAllocator::get();
        c10::DataPtr data(block, block, allocator->raw_deleter(), c10::Device(c10::kCUDA, device));
        allocator->recordStream(data, torch_stream(stream));
    }
    void empty_cache() const { c10::cuda::CUDACachingAllocator::emptyCache(); }
};

PyTorch pytorch;

#endif

void Tenure::free_recorded(void *block, int stream_number) const {
    check(record_fn(device, block, stream(stream_number)));
    free(block);
}

// --- The measured loops ---------------------------------------------------------------------------------------------

// A replacement of a random block: its slot, and the size of its successor.
struct Step {
    uint32_t slot;
    uint32_t bytes;
};

// Returns steps with log-uniform sizes from 512 bytes up.
std::vector<Step> steps(size_t live, size_t most_bytes, uint64_t seed) {
    std::mt19937_64 random(seed);
    std::uniform_int_distribution<uint32_t> slot(0, live - 1);
    std::uniform_real_distribution<double> exponent(std::log2(512.0), std::log2(double(most_bytes)));
    std::vector<Step> steps(1 << 16);
    for (auto &step : steps) step = {slot(random), uint32_t(std::exp2(exponent(random)))};
    return steps;
}

double ns_each(Clock::duration time, size_t count) {
    return std::chrono::duration<double, std::nano>(time).count() / count;
}

template <typename Allocator>
double pair(const Allocator &allocator, size_t bytes, size_t count) {
    void *on = stream(0);
    auto start = Clock::now();
    for (size_t i = 0; i < count; i++) allocator.free(allocator.alloc(bytes, on));
    return ns_each(Clock::now() - start, count);
}

template <typename Allocator>
double churn(const Allocator &allocator, void *on, const std::vector<Step> &steps, size_t live, size_t count,
             const std::function<void()> &ready) {
    std::vector<void *> blocks(live);
    for (size_t i = 0; i < live; i++) blocks[i] = allocator.alloc(steps[i].bytes, on);
    // A first part without timing, so that every shape has been seen.
    for (size_t i = 0; i < steps.size() / 4; i++) {
        void *&block = blocks[steps[i].slot];
        allocator.free(block);
        block = allocator.alloc(steps[i].bytes, on);
    }
    ready();
    auto start = Clock::now();
    for (size_t i = 0; i < count; i++) {
        const Step &step = steps[i % (1 << 16)];
        void *&block = blocks[step.slot];
        allocator.free(block);
        block = allocator.alloc(step.bytes, on);
    }
    double ns = ns_each(Clock::now() - start, count);
    for (void *block : blocks) allocator.free(block);
    return ns;
}

// Runs threads that share so many streams, in turn. Returns the mean over the threads.
template <typename Allocator>
double threads(const Allocator &allocator, int threads, int streams, size_t count, uint64_t seed) {
    constexpr size_t live = 200;
    std::atomic<int> waiting{threads};
    std::vector<double> ns(threads);
    std::vector<std::thread> running;
    for (int i = 0; i < threads; i++) {
        running.emplace_back([&, i] {
            use_device();
            auto mine = steps(live, 1 << 20, seed + i);
            auto together = [&] {
                waiting--;
                while (waiting > 0) std::this_thread::yield();
            };
            ns[i] = churn(allocator, stream(i % streams), mine, live, count, together);
        });
    }
    for (auto &thread : running) thread.join();
    double sum = 0;
    for (double each : ns) sum += each;
    return sum / threads;
}

// Allocates blocks on one stream, records another stream's use of them, and frees them.
template <typename Allocator>
double recorded(const Allocator &allocator, size_t bytes, size_t count) {
    void *on = stream(0);
    auto start = Clock::now();
    for (size_t i = 0; i < count; i++) allocator.free_recorded(allocator.alloc(bytes, on), 1);
    return ns_each(Clock::now() - start, count);
}

// Allocates blocks on a stream in one thread, uses them on another stream, and frees them in another thread.
template <typename Allocator>
double handed_over(const Allocator &allocator, size_t bytes, size_t count) {
    constexpr size_t room = 256;
    std::vector<std::atomic<void *>> ring(room);
    for (auto &place : ring) place = nullptr;
    auto start = Clock::now();
    std::thread consumer([&] {
        use_device();
        for (size_t i = 0; i < count; i++) {
            void *block;
            while (!(block = ring[i % room].exchange(nullptr, std::memory_order_acquire))) std::this_thread::yield();
            allocator.free_recorded(block, 1);
        }
    });
    for (size_t i = 0; i < count; i++) {
        void *block = allocator.alloc(bytes, stream(0));
        while (ring[i % room].load(std::memory_order_relaxed)) std::this_thread::yield();
        ring[i % room].store(block, std::memory_order_release);
    }
    consumer.join();
    return ns_each(Clock::now() - start, count);
}

template <typename Allocator>
double run(const Allocator &allocator, int what, size_t size, size_t most_bytes, size_t count, uint64_t seed) {
    use_device();
    switch (what) {
        case 0: return pair(allocator, size, count);
        case 1: return churn(allocator, stream(0), steps(size, most_bytes, seed), size, count, [] {});
        case 2: return threads(allocator, int(size), int(most_bytes), count, seed);
        case 3: return recorded(allocator, size, count);
        case 4: return handed_over(allocator, size, count);
        case 5: allocator.empty_cache(); return 0;
    }
    fail("no such benchmark");
}

}  // namespace

extern "C" {

// Opens libtenure_capi.so and a device.
void bench_open(const char *library, const char *options) {
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (!handle) fail(dlerror());
    auto find = [&](auto &function, const char *name) {
        void *symbol = dlsym(handle, name);
        if (!symbol) fail(dlerror());
        function = reinterpret_cast<std::decay_t<decltype(function)>>(symbol);
    };
    find(tenure.open, "tenure_open");
    find(tenure.alloc_fn, "tenure_alloc");
    find(tenure.free_fn, "tenure_free");
    find(tenure.record_fn, "tenure_record_stream");
    find(tenure.empty_fn, "tenure_empty_cache");
    find(tenure.last_error, "tenure_last_error");
    use_device();
    tenure.check(tenure.open(device, options));
}

// Returns the nanoseconds for each pair, of Tenure's allocator or PyTorch's.
double bench_run(int ours, int what, size_t size, size_t most_bytes, size_t count, uint64_t seed) {
    if (ours) return run(tenure, what, size, most_bytes, count, seed);
#ifdef WITHOUT_PYTORCH
    fail("built without PyTorch");
#else
    return run(pytorch, what, size, most_bytes, count, seed);
#endif
}

}  // extern "C"
