#include "memory.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <iterator>

namespace emulator {
namespace {

constexpr std::size_t sector = 32, gap = 256;
constexpr int nothing = 0xff;  // what nobody wrote is no number in any floating-point type

template <class T> bool one_value(std::uint8_t const* p, std::uint8_t value) {
  T bytes;
  std::memcpy(&bytes, p, sizeof bytes);
  return bytes == static_cast<T>(static_cast<T>(~T{0}) / 255 * value);
}
// False where it is not looked at.
bool all_are(std::uint8_t const* p, std::size_t n, std::uint8_t value) {
  switch (n) {
  case 1: return *p == value;
  case 2: return one_value<std::uint16_t>(p, value);
  case 4: return one_value<std::uint32_t>(p, value);
  case 8: return one_value<std::uint64_t>(p, value);
  case 16: return one_value<std::uint64_t>(p, value) && one_value<std::uint64_t>(p + 8, value);
  default: return false;
  }
}

template <class T> T* reserve(std::size_t n) {
  void* const p = mmap(nullptr, n * sizeof(T), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) throw std::runtime_error("emulator: no address space");
  return static_cast<T*>(p);
}

}  // namespace

memory::memory() {
  base_ = reserve<std::byte>(size_);
  states_ = reserve<std::uint8_t>(size_);
  visits_ = reserve<visits>(size_);
  read_in_ = reserve<std::uint32_t>(size_ / sector);
  written_in_ = reserve<std::uint32_t>(size_ / sector);
}

memory::~memory() {
  munmap(base_, size_);
  munmap(states_, size_);
  munmap(visits_, size_ * sizeof(visits));
  munmap(read_in_, size_ / sector * sizeof(std::uint32_t));
  munmap(written_in_, size_ / sector * sizeof(std::uint32_t));
}

void* memory::allocate(std::size_t bytes, char const* kind) {
  std::size_t const room = (std::max<std::size_t>(bytes, 1) + gap - 1) / gap * gap + gap;
  std::size_t at;
  auto const spare = spare_.lower_bound(room);
  if (spare != spare_.end() && spare->first < 2 * room) {
    at = spare->second;
    spare_.erase(spare);
  } else {
    if (next_ + room > size_) return nullptr;
    at = next_;
    next_ += room;
  }
  pieces_[at] = {bytes, kind, history_.serial()};
  std::memset(states_ + at, allocated, bytes);
  std::memset(base_ + at, nothing, bytes);
  return base_ + at;
}

bool memory::free(void* p) {
  if (!contains(p)) return false;
  auto const it = pieces_.find(index(p));
  if (it == pieces_.end()) return false;
  std::size_t const bytes = it->second.bytes;
  std::memset(states_ + it->first, 0, bytes);
  spare_.emplace((std::max<std::size_t>(bytes, 1) + gap - 1) / gap * gap + gap, it->first);
  pieces_.erase(it);
  return true;
}

void memory::renew(void* p) {
  auto const it = pieces_.find(index(p));
  std::memset(states_ + it->first, allocated, it->second.bytes);
  std::memset(base_ + it->first, nothing, it->second.bytes);
}

void memory::wrote(void const* p, std::size_t bytes) {
  if (contains(p)) std::memset(states_ + index(p), allocated | written, bytes);
}

void memory::copied(void* to, void const* from, std::size_t bytes) {
  if (!contains(to)) return;
  if (contains(from))
    std::memmove(states_ + index(to), states_ + index(from), bytes);
  else
    wrote(to, bytes);
}

void memory::require(void const* p, std::size_t bytes, char const* what) const {
  if (!contains(p)) return;
  std::uint8_t const* const s = states_ + index(p);
  for (std::size_t i = 0; i < bytes; ++i) {
    if (!(s[i] & allocated))
      throw fault(std::string(what) + ": byte " + std::to_string(i) + " of " + std::to_string(bytes) +
                  " is not allocated; " + place(static_cast<std::byte const*>(p) + i));
  }
}

std::size_t memory::unwritten(void const* p, std::size_t bytes) const {
  if (!contains(p)) return bytes;
  std::uint8_t const* const s = states_ + index(p);
  for (std::size_t i = 0; i < bytes; ++i) {
    if (!(s[i] & written)) return i;
  }
  return bytes;
}

std::string memory::place(void const* p) const {
  if (!contains(p)) return "no memory of the device";
  std::size_t const at = index(p);
  auto it = pieces_.upper_bound(at);
  if (it == pieces_.begin()) return "in front of all allocations";
  --it;
  std::string const whose =
      std::string(it->second.kind) + " memory of " + std::to_string(it->second.bytes) + " bytes";
  std::size_t const offset = at - it->first;
  if (offset < it->second.bytes) return "byte " + std::to_string(offset) + " of " + whose;
  for (auto const& [bytes, begin] : spare_) {
    if (at >= begin && at < begin + bytes)
      return "byte " + std::to_string(at - begin) + " of memory that was given back";
  }
  return std::to_string(offset - it->second.bytes) + " bytes behind " + whose;
}

// Counters go round.
bool memory::cluster_waited(visit const& before, agent const& who) {
  return static_cast<std::int16_t>(who.waits - before.arrivals) > 0;
}

// Of an earlier launch, or of an earlier owner of the memory.
bool memory::kernel_came_before(std::uint32_t block, std::size_t at) const {
  if (block < history_.ordered_blocks()) return true;
  auto const behind = pieces_.upper_bound(at);
  return behind == pieces_.begin() || history_.before(block, std::prev(behind)->second.since);
}
history::range const* memory::open(std::byte const* p, std::size_t bytes, bool writes) const {
  for (history::range const& r : history_.open()) {
    if (!r.meets(p, bytes) || !(r.writes || writes)) continue;
    auto const behind = pieces_.upper_bound(index(p));
    if (behind != pieces_.begin() && r.serial > std::prev(behind)->second.since) return &r;
  }
  return nullptr;
}

std::string memory::touched(void const* p, std::size_t bytes, bool writes) {
  if (!look_for_races || bytes == 0 || !contains(p)) return {};
  auto const* const begin = static_cast<std::byte const*>(p);
  std::size_t const at = index(p);
  std::string problem;
  if (open(begin, bytes, writes) != nullptr)
    problem = "not in order with a copy of another stream: " + place(p);
  if (history_.ordered_blocks() != ~std::uint32_t{0}) {
    for (std::size_t i = 0; i < bytes && problem.empty(); ++i) {
      visits const& v = visits_[at + i];
      if (!kernel_came_before(v.write.block, at + i) || (writes && !kernel_came_before(v.read.block, at + i)))
        problem = "not in order with a kernel of another stream: " + place(begin + i);
    }
  }
  history_.touched(begin, bytes, writes);
  return problem;
}

bool memory::ordered(visit const& before, agent const& who, std::size_t at) const {
  if (before.block < who.first_block)  // an earlier launch
    return before.block < history_.ordered_blocks() || who.in_shared || kernel_came_before(before.block, at);
  if (before.block != who.block || (before.marks & (blocks | clusters))) {
    bool const one_cluster = before.block - before.rank == who.block - who.rank && !(before.marks & clusters);
    return one_cluster && cluster_waited(before, who);
  }
  if (before.block_barriers != who.block_barriers) return true;
  if (cluster_waited(before, who)) return true;
  if (before.marks & warps) return false;
  if (before.thread / 32 != who.thread / 32) return false;
  if (before.warp_barriers != who.warp_barriers) return true;
  return before.thread == who.thread && !(before.marks & lanes);
}

memory::visit memory::joined(visit const& before, agent const& who) {
  visit now{who.block, who.thread, 0, who.rank, who.block_barriers, who.warp_barriers, who.arrivals};
  if (before.block < who.first_block) return now;
  auto const keep = [&](unsigned marks) { now.marks = static_cast<std::uint8_t>(now.marks | marks); };
  if (before.block - before.rank != who.block - who.rank) {
    keep(clusters);
    return now;
  }
  keep(before.marks & clusters);
  if (cluster_waited(before, who)) return now;
  // Whoever is marked may have arrived at a barrier that the last one has not come to.
  if (static_cast<std::int16_t>(before.arrivals - now.arrivals) > 0) now.arrivals = before.arrivals;
  keep(before.marks & blocks);
  if (before.block != who.block) {
    keep(blocks);
  } else if (before.block_barriers == who.block_barriers) {
    keep(before.marks & warps);
    if (before.thread / 32 != who.thread / 32)
      keep(warps);
    else if (before.warp_barriers == who.warp_barriers)
      keep((before.marks & lanes) | (before.thread != who.thread ? lanes : 0));
  }
  return now;
}

std::string memory::kernel(access a, void const* p, std::size_t bytes, std::uint32_t used, agent const& who,
                           void const* stored) {
  std::size_t const at = index(p);
  bool const loads = a == access::load || a == access::atomic;
  bool unknown = false, copied_to = false;
  bool const plain = all_are(states_ + at, bytes, allocated | written);
  for (std::size_t i = plain ? bytes : 0; i < bytes; ++i) {
    std::uint8_t& s = states_[at + i];
    if (!(s & allocated)) throw fault("not allocated: " + place(base_ + at + i));
    if (used >> i & 1) {
      if (loads && !(s & written)) unknown = true;
      if (s & copying) copied_to = true;
    }
    if (a != access::load) s |= written;
  }
  if (a >= access::copy_begins)
    std::memset(states_ + at, a == access::copy_begins ? allocated | written | copying : allocated | written,
                bytes);
  if (a != access::copy_begins) traffic_.asked += bytes;
  if (loads && read_in_[at / sector] != launch_) {
    read_in_[at / sector] = launch_;
    traffic_.read += sector;
  }
  if (a != access::load && written_in_[at / sector] != launch_) {
    written_in_[at / sector] = launch_;
    traffic_.written += sector;
  }
  std::string problem;
  if (unknown && !who.in_shared) problem = "reads what nobody wrote: " + place(p);
  if (!look_for_races) return problem;
  if (copied_to && a != access::copy_ends)
    problem = "races with a write, of an asynchronous copy that nobody waited for: " + place(p);
  if (!history_.open().empty() && !who.in_shared && open(base_ + at, bytes, a != access::load) != nullptr)
    problem = "not in order with a copy of another stream: " + place(p);
  auto const whose = [&](visit const& v) {
    return v.block < who.first_block ? std::string(", of another stream's kernel: ") : std::string(": ");
  };
  // Neighbouring bytes mostly have the same past.
  auto const differ = [](visit const& x, visit const& y) { return std::memcmp(&x, &y, sizeof x) != 0; };
  visit seen_write{}, seen_read{}, now{};
  bool known = false, write_ordered = true, read_ordered = true;
  for (std::size_t i = 0; i < bytes; ++i) {
    if (!(used >> i & 1)) continue;
    visits& v = visits_[at + i];
    if (!known || differ(v.write, seen_write)) {
      seen_write = v.write;
      bool const both_atomic = a == access::atomic && (v.write.marks & atomically);
      write_ordered = both_atomic || ordered(v.write, who, at + i);
      if (a != access::load) now = joined(v.write, who);
      if (a == access::atomic) now.marks |= atomically;
    }
    if (!known || differ(v.read, seen_read)) {
      seen_read = v.read;
      if (a == access::load)
        now = joined(v.read, who);
      else
        read_ordered = ordered(v.read, who, at + i);
    }
    known = true;
    (a == access::load ? v.read : v.write) = now;
    // The same value from several threads is a habit that devices honour.
    bool const same =
        a != access::atomic && stored != nullptr && static_cast<std::byte const*>(stored)[i] == base_[at + i];
    if (!write_ordered && !same) problem = "races with a write" + whose(seen_write) + place(base_ + at + i);
    if (!read_ordered)
      problem = "writes what another thread reads" + whose(seen_read) + place(base_ + at + i);
  }
  return problem;
}

}  // namespace emulator
