#include "machine.hpp"

#include <algorithm>
#include <cstdio>
#include <numeric>

namespace emulator {

void machine::report(std::string const& kernel, std::string const& place, std::string const& what) {
  ++findings_;
  std::string const kind = what.substr(0, what.find(':'));
  if (!known_.insert(kernel + place + kind).second) return;
  std::fprintf(stderr, "emulated device: %s: %s\n  in %s\n", place.c_str(), what.c_str(), kernel.c_str());
}

launch_figures machine::run(launch const& l) {
  std::size_t const shared = (l.kernel->shared_bytes + 63) / 64 * 64 + l.dynamic_shared;
  if (shared_bytes_ != shared) {
    for (std::byte* p : shared_) device_.free(p);
    shared_.clear();
    shared_bytes_ = shared;
  }
  while (shared_.size() < l.cluster)
    shared_.push_back(static_cast<std::byte*>(device_.allocate(shared, "shared")));
  if (threads_.size() < l.block.count() * l.cluster) threads_.resize(l.block.count() * l.cluster);
  std::uint32_t const first = blocks_;
  device_.begin_launch(first);
  std::size_t const n = l.grid.count() / l.cluster, row = l.grid.x / l.cluster;
  launch_figures out;
  std::size_t step = 1, at = 0;  // clusters in an order of their own: a stride that meets each of them once
  if (threads == order::backward) {
    step = n - 1;
    at = n - 1;
  } else if (threads == order::shuffled && n > 2) {
    at = (seed * 7919u + first) % n;
    step = n / 2 + 1 + first % 3;
    while (std::gcd(step, n) != 1) ++step;
  }
  if (step == 0) step = 1;
  for (std::size_t i = 0; i < n; ++i, at = (at + step) % n) {
    extent3 const index{static_cast<unsigned>(at % row) * l.cluster,
                        static_cast<unsigned>(at / row % l.grid.y),
                        static_cast<unsigned>(at / row / l.grid.y)};
    cluster c(*this, l, index, blocks_, first);
    blocks_ += l.cluster;
    c.run();
    out.steps += c.steps();
  }
  out.moved = device_.moved();
  return out;
}

cluster::cluster(machine& m, launch const& l, extent3 first, std::uint32_t number, std::uint32_t first_block)
    : m_(m), l_(l), random_(m.seed * 2246822519u + number) {
  blocks_.reserve(l.cluster);  // threads point at their blocks
  for (unsigned r = 0; r < l.cluster; ++r)
    blocks_.emplace_back(*this, extent3{first.x + r, first.y, first.z}, r, number + r, first_block);
}

void cluster::run() {
  unsigned const n = size();
  for (;;) {
    bool moved = false;
    unsigned const turn = n > 1 && m_.threads == machine::order::shuffled ? random() >> 8 : 0;
    for (unsigned k = 0; k < n; ++k)
      moved = blocks_[m_.threads == machine::order::backward ? n - 1 - k : (k + turn) % n].step() || moved;
    if (!moved && !meet()) break;
  }
  for (block const& b : blocks_) b.check_end();
}

std::uint64_t cluster::steps() const {
  std::uint64_t sum = 0;
  for (block const& b : blocks_) sum += b.steps();
  return sum;
}

block* cluster::owner(std::byte const* p) {
  for (block& b : blocks_) {
    if (p >= b.shared_ && p < b.shared_ + b.shared_bytes_) return &b;
  }
  return nullptr;
}

std::byte* cluster::in_window(block const& from, std::uint32_t address) {
  std::uint32_t const above = address >> 24, offset = address & 0xffffff;
  if (above == 0) return from.shared() + offset;
  return above <= size() ? blocks_[above - 1].shared() + offset : nullptr;
}

void cluster::arrive(thread& t, instruction const& i, bool relaxed) {
  if (t.arrived) t.where->stop(t, i, "arrives at a barrier of the cluster twice without a wait between");
  if (relaxed_.value_or(relaxed) != relaxed)
    t.where->stop(t, i, "some threads arrive relaxed and others do not, which is not emulated");
  relaxed_ = relaxed;
  t.arrived = true;
  t.relaxed = relaxed;
  t.phase = phase_;
  if (!relaxed) ++t.who.arrivals;
}
void cluster::wait(thread& t, instruction const& i) {
  if (!t.arrived) t.where->stop(t, i, "waits at a barrier of the cluster without having arrived");
  if (t.phase == phase_)
    t.wait();
  else
    pass(t);
}
void cluster::pass(thread& t) {
  t.arrived = false;
  t.met = true;
  if (!t.relaxed) ++t.who.waits;
}

// All threads that have not ended have arrived: those that wait go on.
bool cluster::meet() {
  bool any = false;
  std::size_t const n = l_.block.count() * size();
  for (std::size_t k = 0; k < n; ++k) {
    thread const& t = m_.threads_[k];
    if (t.now == thread::state::done) continue;
    if (!t.arrived || t.phase != phase_) return false;
    any = true;
  }
  if (!any) return false;
  ++phase_;
  relaxed_.reset();
  for (std::size_t k = 0; k < n; ++k) {
    thread& t = m_.threads_[k];
    if (t.now != thread::state::waiting || collective_of(*t.pc) != collective::cluster_wait) continue;
    t.now = thread::state::running;
    ++t.pc;
    pass(t);
  }
  return true;
}

block::block(cluster& c, extent3 index, unsigned rank, std::uint32_t number, std::uint32_t first)
    : of_(c),
      m_(c.m_),
      l_(c.l_),
      index_(index),
      rank_(rank),
      shared_(m_.shared_[rank]),
      shared_bytes_(m_.shared_bytes_),
      count_(l_.block.count()),
      threads_(m_.threads_.data() + rank * count_),
      random_(m_.seed * 2654435761u + number),
      running_(count_) {
  m_.device_.renew(shared_);
  for (std::size_t i = 0; i < count_; ++i) {
    thread& t = threads_[i];
    t.where = this;
    t.who = {};
    t.who.block = number;
    t.who.first_block = first;
    t.who.thread = static_cast<std::uint16_t>(i);
    t.who.rank = static_cast<std::uint8_t>(rank);
    t.arrived = t.met = false;
    t.tid[0] = static_cast<std::uint32_t>(i % l_.block.x);
    t.tid[1] = static_cast<std::uint32_t>(i / l_.block.x % l_.block.y);
    t.tid[2] = static_cast<std::uint32_t>(i / l_.block.x / l_.block.y);
    t.depth = 0;
    t.copies.clear();
    t.copy_group = 0;
    t.now = thread::state::running;
    enter(t, *l_.kernel, nullptr, nullptr);
  }
}

void block::enter(thread& t, function const& f, call_site const* call, instruction const* back) {
  if (t.frames.size() <= t.depth) t.frames.resize(t.depth + 1);
  frame& now = t.frames[t.depth];
  if (now.registers.size() < f.slots) now.registers.resize(f.slots);
  if (now.parameters.size() < f.frame_bytes) now.parameters.resize(f.frame_bytes);
  if (now.local.size() < f.local_bytes) now.local.resize(f.local_bytes);
  // No number, where nobody wrote. Reading it is no mistake by itself: compilers copy structs with padding.
  std::fill_n(now.local.begin(), f.local_bytes, std::byte{0xff});
  now.f = &f;
  now.call = call;
  now.back = back;
  if (call != nullptr) {
    frame const& caller = t.frames[t.depth - 1];
    for (std::size_t i = 0; i < call->arguments.size(); ++i)
      std::memcpy(now.parameters.data() + f.parameters[i].offset,
                  caller.parameters.data() + call->arguments[i], f.parameters[i].bytes);
  } else if (!l_.parameters.empty()) {
    std::memcpy(now.parameters.data(), l_.parameters.data(), l_.parameters.size());
  }
  auto const axis = [](extent3 e, std::uint64_t i) { return i == 0 ? e.x : i == 1 ? e.y : e.z; };
  std::uint64_t* r = now.registers.data();
  for (preset_slot const& p : f.presets) {
    using kind = preset_slot::kind;
    std::uint64_t x = p.number;
    switch (p.what) {
    case kind::number: break;
    case kind::tid: x = t.tid[x]; break;
    case kind::ntid: x = axis(l_.block, x); break;
    case kind::ctaid: x = axis(index_, x); break;
    case kind::nctaid: x = axis(l_.grid, x); break;
    case kind::lane: x = t.lane(); break;
    case kind::cluster: x = x == 0 ? index_.x / l_.cluster : axis(index_, x); break;
    case kind::clusters: x = x == 0 ? l_.grid.x / l_.cluster : axis(l_.grid, x); break;
    case kind::in_cluster: x = x == 0 ? rank_ : 0; break;
    case kind::cluster_size: x = x == 0 ? l_.cluster : 1; break;
    case kind::local: x += reinterpret_cast<std::uintptr_t>(now.local.data()); break;
    case kind::shared_size: x = (l_.kernel->shared_bytes + 63) / 64 * 64; break;
    case kind::parameter: x += reinterpret_cast<std::uintptr_t>(now.parameters.data()); break;
    }
    *r++ = x;
  }
  t.r = now.registers.data();
  t.pc = f.code.data();
  ++t.depth;
}

void block::leave(thread& t) {
  if (t.depth == 1) {
    finish_copies(t, t.copy_group + 1);
    if (t.arrived) stop(t, *(t.pc - 1), "ends after it arrived at a barrier of the cluster, without a wait");
    t.now = thread::state::done;
    waits_ = std::max(waits_, t.who.waits);
    if (--running_ == 0) check_visits();
    return;
  }
  frame const& now = t.frames[t.depth - 1];
  frame& caller = t.frames[t.depth - 2];
  for (std::size_t i = 0; i < now.call->results.size(); ++i)
    std::memcpy(caller.parameters.data() + now.call->results[i],
                now.parameters.data() + now.f->results[i].offset, now.f->results[i].bytes);
  t.pc = now.back;
  t.r = caller.registers.data();
  --t.depth;
}

std::string block::place(thread const& t, instruction const& i) const {
  function const& f = *t.frames[t.depth - 1].f;
  std::size_t const n = static_cast<std::size_t>(&i - f.code.data());
  return "PTX line " + std::to_string(i.line) + ", " + f.text[n];
}
void block::stop(thread const& t, instruction const& i, std::string const& what) const {
  throw fault(place(t, i) + " of thread " + std::to_string(t.who.thread) + ", block " +
              std::to_string(index_.x) + ": " + what + "\n  in " + l_.kernel->name);
}

// Another block's shared memory is there between two barriers of the cluster: it may not have begun before
// the first, and may have ended behind the last.
void block::visit_other(thread& t, instruction const& i, block& owner) {
  auto const who = [&] {
    return ", thread " + std::to_string(t.who.thread) + " of block " + std::to_string(index_.x);
  };
  if (!t.met)
    m_.report(l_.kernel->name, place(t, i),
              "shared memory of a block that may not run yet: no barrier of the cluster lies between" +
                  who());
  if (!owner.foreign_ || owner.foreign_->arrivals < t.who.arrivals)
    owner.foreign_ = {t.who.arrivals, place(t, i), who()};
  if (owner.running_ == 0) owner.check_visits();
}
void block::check_visits() const {
  if (foreign_ && foreign_->arrivals >= waits_)
    m_.report(l_.kernel->name, foreign_->place,
              "shared memory of a block that may have ended: no barrier of the cluster lies between" +
                  foreign_->thread);
}

void block::access(thread& t, instruction const& i, memory::access a, std::byte* p, std::size_t bytes,
                   void const* stored) {
  auto const address = reinterpret_cast<std::uintptr_t>(p);
  if (address % bytes != 0) stop(t, i, "misaligned address");
  if (m_.device_.contains(p)) {
    agent who = t.who;
    block* const owner = p >= shared_ && p < shared_ + shared_bytes_ ? this
                         : of_.size() > 1                            ? of_.owner(p)
                                                                     : nullptr;
    if (owner != nullptr) {
      who.first_block = who.block - who.rank;  // earlier clusters had it
      who.in_shared = true;
      if (owner != this) visit_other(t, i, *owner);
    }
    std::string problem;
    try {
      problem = m_.device_.kernel(a, p, bytes, i.used, who, stored);
    } catch (fault const& f) {
      stop(t, i, f.what());
    }
    if (!problem.empty())
      m_.report(l_.kernel->name, place(t, i),
                problem + ", thread " + std::to_string(t.who.thread) + " of block " +
                    std::to_string(index_.x));
    return;
  }
  for (std::size_t d = t.depth; d-- > 0;) {
    frame const& own = t.frames[d];
    auto const inside = [&](std::vector<std::byte> const& v, std::size_t size) {
      return p >= v.data() && p + bytes <= v.data() + size;
    };
    if (inside(own.local, own.f->local_bytes)) return;
    if (inside(own.parameters, own.f->frame_bytes)) {
      // A kernel's own parameters cannot be written; those of calls can.
      if (a != memory::access::load && d == 0 && p < own.parameters.data() + own.f->parameter_bytes &&
          own.f->entry)
        stop(t, i, "writes a parameter of the kernel");
      return;
    }
  }
  stop(t, i, "an address that is no memory of the device");
}

void block::land(thread& t, thread::copy const& c) {
  access(t, *c.at, memory::access::load, const_cast<std::byte*>(c.from), c.bytes, nullptr);
  std::memcpy(c.to, c.from, c.bytes);
}
void block::begin_copy(thread& t, instruction const& i, std::byte* to, std::byte const* from,
                       unsigned bytes) {
  bool const now = m_.copies == machine::landing::early ||
                   (m_.copies == machine::landing::shuffled && (random() >> 30 & 1) != 0);
  t.copies.push_back({to, from, bytes, t.copy_group, &i, now});
  access(t, i, memory::access::copy_begins, to, bytes, m_.device_.contains(from) ? from : nullptr);
  if (now) land(t, t.copies.back());
}
void block::finish_copies(thread& t, std::size_t groups) {
  std::size_t kept = 0;
  for (thread::copy const& c : t.copies) {
    if (c.group >= groups) {
      t.copies[kept++] = c;
      continue;
    }
    if (!c.landed) land(t, c);
    access(t, *c.at, memory::access::copy_ends, c.to, c.bytes, c.from);
  }
  t.copies.resize(kept);
}

void block::print(thread& t, call_site const& c) {
  frame const& now = t.frames[t.depth - 1];
  auto const argument = [&](std::size_t i) {
    char const* p;
    std::memcpy(&p, now.parameters.data() + c.arguments[i], sizeof p);
    return p;
  };
  if (c.name == "__assertfail") {
    std::uint32_t line;
    std::memcpy(&line, now.parameters.data() + c.arguments[2], sizeof line);
    throw fault(std::string("assertion failed: ") + argument(0) + ", " + argument(1) + ":" +
                std::to_string(line));
  }
  if (c.name != "vprintf") throw fault("calls " + c.name + ", which is not there");
  std::fputs(argument(0), stdout);  // without its numbers
}

void block::run_thread(thread& t) {
  std::uint64_t steps = 0;
  while (t.now == thread::state::running) {
    instruction const& i = *t.pc++;
    ++steps;
    if (i.guard != instruction::none && get<bool>(t, i.guard) == ((i.detail & 1) != 0)) continue;
    i.run(t, i);
  }
  steps_ += steps;
}

bool block::run_warp(std::size_t warp) {
  std::size_t const begin = warp * 32, end = std::min(begin + 32, count_), n = end - begin;
  bool moved = false;
  bool const shuffled = m_.threads == machine::order::shuffled;
  std::size_t const turn = shuffled ? random() >> 8 : 0;
  for (std::size_t k = 0; k < n; ++k) {
    std::size_t const lane = m_.threads == machine::order::backward || (turn & 1) != 0 ? n - 1 - k : k;
    thread& t = threads_[begin + (lane + turn) % n];
    if (t.now != thread::state::running) continue;
    run_thread(t);
    moved = true;
  }
  return moved;
}

bool block::step() {
  std::size_t const warps = (count_ + 31) / 32;
  bool moved = false;
  std::size_t const turn = m_.threads == machine::order::shuffled ? random() >> 8 : 0;
  for (std::size_t k = 0; k < warps; ++k) {
    std::size_t const w = m_.threads == machine::order::backward ? warps - 1 - k : (k + turn) % warps;
    while (run_warp(w) || together(w)) moved = true;
  }
  return meet() || moved;
}

void block::check_end() const {
  for (std::size_t i = 0; i < count_; ++i) {
    thread const& t = threads_[i];
    if (t.now == thread::state::waiting) stop(t, *t.pc, "waits for threads that never come");
  }
}

// All threads of the block at a barrier: they go on.
bool block::meet() {
  bool any = false;
  for (std::size_t i = 0; i < count_; ++i) {
    thread const& t = threads_[i];
    if (t.now == thread::state::done) continue;
    if (collective_of(*t.pc) != collective::barrier) return false;
    any = true;
  }
  if (!any) return false;
  for (std::size_t i = 0; i < count_; ++i) {
    thread& t = threads_[i];
    if (t.now == thread::state::done) {
      std::size_t other = 0;
      while (threads_[other].now == thread::state::done) ++other;
      thread const& waits = threads_[other];
      stop(waits, *waits.pc, "a barrier of the block, and thread " + std::to_string(i) + " has ended");
    }
    thread const& first = threads_[i / 32 * 32];
    if (t.pc != first.pc) stop(t, *t.pc, "lanes of a warp are at different barriers");
  }
  for (std::size_t i = 0; i < count_; ++i) {
    thread& t = threads_[i];
    ++t.who.block_barriers;
    ++t.pc;
    t.now = thread::state::running;
  }
  return true;
}

}  // namespace emulator
