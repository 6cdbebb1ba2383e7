#include "history.hpp"

#include <algorithm>

namespace emulator {

void clock_of_streams::reach(std::size_t stream, std::uint32_t number) {
  if (at_.size() <= stream) at_.resize(stream + 1);
  at_[stream] = std::max(at_[stream], number);
}
void clock_of_streams::join(clock_of_streams const& other) {
  for (std::size_t s = 0; s < other.at_.size(); ++s) reach(s, other.at_[s]);
}

bool clock_of_streams::covers(clock_of_streams const& other) const {
  for (std::size_t s = 0; s < other.at_.size(); ++s) {
    if ((*this)[s] < other.at_[s]) return false;
  }
  return true;
}

void history::begin(stamp const& now) {
  now_ = now;
  ++serial_;
  ordered_blocks_ = ~std::uint32_t{0};
  open_.clear();
  if (streams_.size() <= now.stream) streams_.resize(now.stream + 1);
  streams_[now.stream].last = now.number;
  for (std::size_t s = 0; s < streams_.size(); ++s) {
    done const& d = streams_[s];
    std::uint32_t const known = (*now.before)[s];
    if (s == now.stream || d.last <= known) continue;
    auto const later = [](std::uint32_t n, auto const& x) { return n < x.number; };
    auto const k = std::upper_bound(d.kernels.begin(), d.kernels.end(), known, later);
    if (k != d.kernels.end()) ordered_blocks_ = std::min(ordered_blocks_, k->first_block);
    open_.insert(open_.end(), std::upper_bound(d.ranges.begin(), d.ranges.end(), known, later),
                 d.ranges.end());
  }
}

void history::launched(std::uint32_t first_block) {
  kernels_.push_back({first_block, now_.stream, now_.number, serial_});
  streams_[now_.stream].kernels.push_back(kernels_.back());
}
void history::touched(std::byte const* p, std::size_t bytes, bool writes) {
  streams_[now_.stream].ranges.push_back({p, bytes, writes, now_.number, serial_});
}

bool history::before(std::uint32_t block, std::uint32_t serial) const {
  auto k = std::upper_bound(kernels_.begin(), kernels_.end(), block,
                            [](std::uint32_t b, kernel const& x) { return b < x.first_block; });
  if (k == kernels_.begin()) return true;  // nobody's
  --k;
  return k->serial <= serial || k->stream == now_.stream || k->number <= (*now_.before)[k->stream];
}

}  // namespace emulator
