#include "device.hpp"

#include <cxxabi.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace emulator {
namespace {

constexpr std::size_t static_limit = 48 * 1024, optin_limit = 227 * 1024;

std::string setting(char const* name) {
  char const* const s = std::getenv(name);
  return s == nullptr ? "" : s;
}

std::string readable(std::string const& name) {
  char* const s = abi::__cxa_demangle(name.c_str(), nullptr, nullptr, nullptr);
  std::string const out = s == nullptr ? name : s;
  std::free(s);
  return out;
}

unsigned long long number(std::uint64_t x) { return x; }

// A fat binary: a header, then entries with headers of their own; kind 1 is PTX.
std::string_view ptx_of(void const* container) {
  struct header {
    std::uint32_t magic;
    std::uint16_t version, bytes;
    std::uint64_t payload;
  };
  struct entry {
    std::uint16_t kind, version;
    std::uint32_t header_bytes;
    std::uint64_t payload;
  };
  header h;
  std::memcpy(&h, container, sizeof h);
  auto const* p = static_cast<char const*>(container) + h.bytes;
  auto const* const end = p + h.payload;
  while (h.magic == 0xba55ed50u && p + sizeof(entry) <= end) {
    entry e;
    std::memcpy(&e, p, sizeof e);
    std::string_view const text(p + e.header_bytes, e.payload);
    if (e.kind == 1) {
      if (text.find(".version") == text.npos) break;
      return text;
    }
    p += e.header_bytes + e.payload;
  }
  std::fprintf(stderr, "emulated device: no plain PTX in the program; build with -gencode "
                       "arch=compute_NN,code=compute_NN -no-compress\n");
  std::exit(1);
}

}  // namespace

device& device::instance() {
  static device* const d = new device;  // outlives every static object that still talks to it
  return *d;
}

device::device() {
  std::string const order = setting("EMULATOR_ORDER"), seed = setting("EMULATOR_SEED");
  using kind = emulator::machine::order;
  machine_.threads = order == "forward"    ? kind::forward
                     : order == "backward" ? kind::backward
                                           : kind::shuffled;
  using landing = emulator::machine::landing;
  std::string const copies = setting("EMULATOR_COPIES");
  machine_.copies = copies == "late" ? landing::late : copies == "early" ? landing::early : landing::shuffled;
  if (!seed.empty()) machine_.seed = static_cast<std::uint32_t>(std::stoul(seed));
  if (!setting("EMULATOR_PROCESSORS").empty()) processors = std::stoul(setting("EMULATOR_PROCESSORS"));
  if (!setting("EMULATOR_DEVICES").empty()) devices = std::stoi(setting("EMULATOR_DEVICES"));
  memory_.look_for_races = setting("EMULATOR_RACES") != "off";
  log_ = setting("EMULATOR_LOG") == "on";
  std::atexit(at_exit);
}

void device::at_exit() {
  device& d = instance();
  d.finish_all();
  if (d.log_) {
    std::printf("%9s %14s %12s %12s %12s  %s\n", "launches", "instructions", "bytes asked", "read", "written",
                "kernel");
    for (kernel_figures const& f : d.take_figures()) {
      std::printf("%9llu %14llu %12llu %12llu %12llu  %.300s\n", number(f.launches), number(f.instructions),
                  number(f.asked), number(f.read), number(f.written), f.name.c_str());
    }
  }
  std::size_t const findings = d.machine_.findings();
  std::printf("emulated device: %llu launches, %llu instructions, %llu waits of the host, %zu findings\n",
              number(d.all_.launches), number(d.all_.instructions), number(d.waits), findings);
  std::fflush(nullptr);
  if (findings != 0 || d.sticky_ != cudaSuccess) std::_Exit(86);
}

std::vector<kernel_figures> device::take_figures() {
  finish_all();
  std::vector<kernel_figures> out;
  for (auto& [f, sums] : figures_) {
    sums.name = readable(f->name);
    out.push_back(sums);
  }
  figures_.clear();
  return out;
}
std::vector<kernel_figures> take_figures() { return device::instance().take_figures(); }

void device::add_module(void* handle, void const* container) { modules_[handle].ptx = ptx_of(container); }

function const* device::find(void const* host) {
  auto const it = functions_.find(host);
  if (it == functions_.end()) return nullptr;
  code& c = modules_.at(it->second.first);
  if (c.parsed == nullptr) {
    try {
      c.parsed = parse(c.ptx, memory_);
    } catch (std::exception const& e) {
      std::fprintf(stderr, "emulated device: %s\n", e.what());
      std::_Exit(1);
    }
  }
  auto const f = c.parsed->functions.find(it->second.second);
  return f == c.parsed->functions.end() ? nullptr : f->second.get();
}

void device::remove(cudaStream_t s) {
  finish(s);
  streams_.erase(std::remove(streams_.begin(), streams_.end(), s), streams_.end());
}

bool device::capturing() const {
  return std::any_of(streams_.begin(), streams_.end(), [](cudaStream_t s) { return s->capture != nullptr; });
}
bool device::forbidden_now() {
  bool found = false;
  for (cudaStream_t s : streams_) {
    if (s->capture == nullptr) continue;
    s->broken = found = true;
  }
  return found;
}

cudaError_t device::enqueue(cudaStream_t s, std::function<void()> work) {
  if (sticky_ != cudaSuccess) return sticky_;
  s = of(s);
  if (s->capture != nullptr) {
    if (s->broken) return last(cudaErrorStreamCaptureInvalidated);
    s->capture->nodes.push_back(std::move(work));
    return cudaSuccess;
  }
  // The default stream waits for the blocking ones, and they for it.
  if (s == &default_) {
    for (cudaStream_t other : streams_) {
      if (!other->blocking) continue;
      if (other->capture != nullptr) {
        other->broken = true;
        return last(cudaErrorStreamCaptureImplicit);
      }
      finish(other);
      join(s, clock(other));
    }
  } else if (s->blocking) {
    finish(&default_);
    join(s, clock(&default_));
  }
  join(s, host_);
  s->work.push_back({{s->number, ++s->enqueued, s->before}, std::move(work)});
  return cudaSuccess;
}

clock_of_streams device::clock(cudaStream_t s) {
  s = of(s);
  clock_of_streams c = *s->before;
  c.reach(s->number, s->enqueued);
  return c;
}
void device::join(cudaStream_t s, clock_of_streams const& before) {
  s = of(s);
  if (s->before->covers(before)) return;
  auto joined = std::make_shared<clock_of_streams>(*s->before);
  joined->join(before);
  s->before = std::move(joined);
}
void device::host_waited(cudaStream_t s) { host_.join(clock(s)); }
void device::host_waited_for_all() {
  host_waited(nullptr);
  for (cudaStream_t s : streams_) host_waited(s);
}
void device::touched(char const* call, void const* p, std::size_t bytes, bool writes) {
  std::string const problem = memory_.touched(p, bytes, writes);
  if (!problem.empty()) machine_.report("a stream", call, problem);
}

void device::run_next(cudaStream_t s) {
  auto const work = std::move(s->work.front());
  s->work.pop_front();
  if (sticky_ != cudaSuccess) return;
  try {
    memory_.begin_work(work.when);
    work.run();
  } catch (fault const& f) {
    std::fprintf(stderr, "emulated device: %s\n", f.what());
    sticky_ = cudaErrorIllegalAddress;
  }
}
void device::finish(cudaStream_t s) {
  s = of(s);
  while (!s->work.empty()) run_next(s);
}
void device::finish_all() {
  finish(&default_);
  for (std::size_t i = 0; i < streams_.size(); ++i) finish(streams_[i]);
}
void device::advance(cudaStream_t s) {
  s = of(s);
  if (!s->work.empty()) run_next(s);
}

bool device::is_pinned(void const* p) const {
  auto const at = static_cast<std::byte const*>(p);
  auto it = pinned.upper_bound(at);
  return it != pinned.begin() && at < std::prev(it)->first + std::prev(it)->second;
}

cudaError_t device::set_shared(void const* host, int bytes) {
  function const* const f = find(host);
  if (f == nullptr) return last(cudaErrorInvalidDeviceFunction);
  if (bytes < 0 || static_cast<std::size_t>(bytes) + f->shared_bytes > optin_limit)
    return last(cudaErrorInvalidValue);
  most_shared_[f] = static_cast<std::size_t>(bytes);
  return cudaSuccess;
}

cudaError_t device::set_non_portable(void const* host, bool allowed) {
  function const* const f = find(host);
  if (f == nullptr) return last(cudaErrorInvalidDeviceFunction);
  if (allowed)
    non_portable_.insert(f);
  else
    non_portable_.erase(f);
  return cudaSuccess;
}
cudaError_t device::attributes(void const* host, cudaFuncAttributes& to) {
  function const* const f = find(host);
  if (f == nullptr) return last(cudaErrorInvalidDeviceFunction);
  auto const allowed = most_shared_.find(f);
  to = {};
  to.sharedSizeBytes = f->shared_bytes;
  to.localSizeBytes = f->local_bytes;
  to.maxThreadsPerBlock = static_cast<int>(f->most_threads);
  to.ptxVersion = modules_.at(functions_.at(host).first).parsed->architecture;
  to.binaryVersion = 90;
  to.maxDynamicSharedSizeBytes =
      static_cast<int>(allowed == most_shared_.end() ? static_limit - f->shared_bytes : allowed->second);
  to.requiredClusterWidth = static_cast<int>(f->cluster);
  to.requiredClusterHeight = to.requiredClusterDepth = f->cluster != 0 ? 1 : 0;
  to.clusterDimMustBeSet = 0;
  to.nonPortableClusterSizeAllowed = static_cast<int>(non_portable_.count(f));
  return cudaSuccess;
}

cudaError_t device::launch(function const& f, dim3 grid, dim3 block, void** arguments, std::size_t shared,
                           cudaStream_t s, unsigned cluster) {
  if (sticky_ != cudaSuccess) return sticky_;
  if (of(s) != &default_ && of(s)->device != current) return last(cudaErrorInvalidResourceHandle);
  emulator::launch l;
  l.kernel = &f;
  l.grid = {grid.x, grid.y, grid.z};
  l.block = {block.x, block.y, block.z};
  l.dynamic_shared = shared;
  l.cluster = cluster != 0 ? cluster : std::max(f.cluster, 1u);
  if (l.grid.count() == 0 || l.block.count() == 0 || l.block.count() > 1024 || grid.x > 0x7fffffffu ||
      grid.y > 65535 || grid.z > 65535)
    return last(cudaErrorInvalidConfiguration);
  // What a device's compiler refuses is refused here.
  if (f.shared_bytes > static_limit) return last(cudaErrorInvalidPtx);
  if (f.parameter_bytes > f.most_parameter_bytes) return last(cudaErrorInvalidValue);
  if (l.block.count() > f.most_threads) return last(cudaErrorLaunchOutOfResources);
  if (l.cluster > largest_cluster(f) || grid.x % l.cluster != 0 || (f.cluster != 0 && l.cluster != f.cluster))
    return last(cudaErrorInvalidClusterSize);
  auto const allowed = most_shared_.find(&f);
  std::size_t const most = allowed == most_shared_.end() ? static_limit - f.shared_bytes : allowed->second;
  if (shared > std::max(most, static_limit - f.shared_bytes)) return last(cudaErrorInvalidValue);
  l.parameters.resize(f.parameter_bytes);
  for (std::size_t i = 0; i < f.parameters.size(); ++i)
    std::memcpy(l.parameters.data() + f.parameters[i].offset, arguments[i], f.parameters[i].bytes);
  return enqueue(s, [this, l = std::move(l)] {
    launch_figures const g = machine_.run(l);
    for (kernel_figures* sums : {&figures_[l.kernel], &all_}) {
      ++sums->launches;
      sums->instructions += g.steps;
      sums->asked += g.moved.asked;
      sums->read += g.moved.read;
      sums->written += g.moved.written;
      sums->fewest_blocks = std::min<std::uint64_t>(sums->fewest_blocks, l.grid.count());
    }
  });
}

}  // namespace emulator
