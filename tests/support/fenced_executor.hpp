// Stands in for a device: its memory can be read and written by launches and copies alone. Whatever else
// touches it dies.
#pragma once

#include <kvmeld/backend/host/host_executor.hpp>
#include <kvmeld/core/span.hpp>
#include <kvmeld/core/types.hpp>
#include <kvmeld/exec/call_record.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include <sys/mman.h>
#include <unistd.h>

namespace support {

// All memory behind one fence opens and closes together.
class fence {
public:
  void* take(std::size_t bytes) {
    std::size_t const page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    std::size_t const size = (bytes + page - 1) / page * page + page;
    void* const p = mmap(nullptr, size, open_ == 0 ? PROT_NONE : PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) throw std::bad_alloc();
    regions_.emplace_back(p, size);
    return p;
  }
  void give_back(void* p) {
    for (auto& r : regions_) {
      if (r.first != p) continue;
      munmap(r.first, r.second);
      r = regions_.back();
      return regions_.pop_back();
    }
  }
  void open() {
    if (open_++ == 0) set(PROT_READ | PROT_WRITE);
  }
  void close() {
    if (--open_ == 0) set(PROT_NONE);
  }

private:
  void set(int protection) {
    for (auto const& r : regions_) {
      if (mprotect(r.first, r.second, protection) != 0) throw std::bad_alloc();
    }
  }
  std::vector<std::pair<void*, std::size_t>> regions_;
  int open_ = 0;
};

class gate {
public:
  explicit gate(std::shared_ptr<fence> const& f) : fence_(*f) { fence_.open(); }
  gate(gate const&) = delete;
  gate& operator=(gate const&) = delete;
  ~gate() { fence_.close(); }

private:
  fence& fence_;
};

class fenced_memory {
public:
  fenced_memory() = default;
  fenced_memory(std::shared_ptr<fence> f, std::size_t bytes)
      : fence_(std::move(f)), data_(fence_->take(bytes)), bytes_(bytes) {}
  fenced_memory(fenced_memory const& other) {
    if (other.data_ == nullptr) return;
    *this = fenced_memory(other.fence_, other.bytes_);
    gate const g(fence_);
    std::memcpy(data_, other.data_, bytes_);
  }
  fenced_memory(fenced_memory&& other) noexcept
      : fence_(std::move(other.fence_)),
        data_(std::exchange(other.data_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)) {}
  fenced_memory& operator=(fenced_memory other) noexcept {
    std::swap(fence_, other.fence_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~fenced_memory() {
    if (data_ != nullptr) fence_->give_back(data_);
  }

  void* data() const { return data_; }
  std::size_t size() const { return bytes_; }

private:
  std::shared_ptr<fence> fence_;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

// A copy that arrives when it has been asked for three times.
class slow_transfer {
public:
  template <class Executor> void begin(Executor& executor, void const* from, std::size_t bytes) {
    data_.resize(bytes);
    executor.download(data_.data(), from, bytes);
    asked_ = 0;
  }
  template <class Executor> bool done(Executor&) { return ++asked_ == 3; }
  void* data() const { return const_cast<std::byte*>(data_.data()); }

private:
  std::vector<std::byte> data_;
  int asked_ = 0;
};

class fenced_executor : public kvmeld::recordable_executor {
public:
  using memory = fenced_memory;
  using transfer = slow_transfer;
  static constexpr bool immediate = false;

  fenced_executor() : fence_(std::make_shared<fence>()), host_(1), staging_(fence_, staged_bytes) {}
  fenced_executor(fenced_executor const& other)
      : recordable_executor(other), fence_(other.fence_), host_(1), staging_(fence_, staged_bytes) {}
  fenced_executor(fenced_executor&&) = default;
  fenced_executor& operator=(fenced_executor&&) = default;

  memory allocate(std::size_t bytes) const { return memory(fence_, bytes); }
  std::uint32_t workers() const { return 1; }
  int lanes() const { return 1; }
  void clear(void* to, std::size_t bytes) const {
    gate const g(fence_);
    std::memset(to, 0, bytes);
  }
  void upload(void* to, void const* host, std::size_t bytes) const {
    if (bytes == 0) return;  // of an empty list, which may be null
    gate const g(fence_);
    std::memcpy(to, host, bytes);
  }
  void download(void* host, void const* from, std::size_t bytes) const {
    gate const g(fence_);
    std::memcpy(host, from, bytes);
  }
  kvmeld::index_list stage(kvmeld::index_list list) {
    if (record() != nullptr) return record()->stage(list);
    std::size_t const bytes = list.size() * sizeof(std::uint32_t);
    if (next_ + bytes > staged_bytes) next_ = 0;
    auto* const to = static_cast<std::byte*>(staging_.data()) + next_;
    upload(to, list.data(), bytes);
    next_ += bytes;
    return {reinterpret_cast<std::uint32_t const*>(to), list.size()};
  }
  template <class Phase, class Source>
  void run(Phase const& phase, kvmeld::shape const& extent, std::uint32_t items, Source const& source) {
    if (rehearses()) {
      std::size_t const bytes = phase.scratch_bytes(1);
      if (!host_.reserve(bytes).ok()) lacks(bytes);
      return;
    }
    if (record() != nullptr) {
      if (record()->launch(kind_of<Phase>(), std::uint64_t{items} * phase.tiles(extent)))
        captured_->push_back([=](fenced_executor& e) { e.run(phase, extent, items, source); });
      return;
    }
    gate const g(fence_);
    host_.run(phase, extent, items, source);
  }
  void reserve(std::size_t bytes) { host_.reserve(bytes); }
  // While a record is attached launches are kept here, as a stream under capture keeps them.
  void capture_in(std::vector<std::function<void(fenced_executor&)>>& launches) { captured_ = &launches; }

private:
  static constexpr std::size_t staged_bytes = 1 << 16;
  std::shared_ptr<fence> fence_;
  kvmeld::host_executor host_;
  fenced_memory staging_;
  std::size_t next_ = 0;
  std::vector<std::function<void(fenced_executor&)>>* captured_ = nullptr;
};

// The calls of a cache as a CUDA graph would keep them.
class fenced_graph {
public:
  explicit fenced_graph(fenced_executor const& e, std::size_t room = 4096)
      : executor_(e),
        places_(executor_.allocate(room * sizeof(std::uint32_t))),
        record_(static_cast<std::uint32_t*>(places_.data()), room) {
    executor_.reserve(1 << 20);  // a graph's launches find their scratch
  }
  fenced_graph(fenced_graph const&) = delete;
  fenced_graph& operator=(fenced_graph const&) = delete;

  template <class Calls> std::string record(fenced_executor& caller, Calls calls) {
    launches_.clear();
    caller.capture_in(launches_);
    record_.begin_recording();
    return finish(caller, calls);
  }
  template <class Calls> std::string replay(fenced_executor& caller, Calls calls) {
    record_.begin_replay();
    return finish(caller, calls);
  }
  std::size_t launches() const { return launches_.size(); }

private:
  template <class Calls> std::string finish(fenced_executor& caller, Calls calls) {
    struct attachment {
      fenced_executor& executor;
      ~attachment() { executor.attach(nullptr); }
    };
    kvmeld::joint_launch all(record_);
    {
      attachment const calls_go_here{caller};
      caller.attach(&record_);
      calls();
    }
    std::string const problem = record_.end();
    if (!problem.empty()) return problem;
    all.launched = true;
    executor_.upload(places_.data(), record_.numbers().data(),
                     record_.numbers().size() * sizeof(std::uint32_t));
    for (auto const& launch : launches_) launch(executor_);
    return {};
  }

  fenced_executor executor_;
  fenced_memory places_;
  kvmeld::call_record record_;
  std::vector<std::function<void(fenced_executor&)>> launches_;
};

}  // namespace support
