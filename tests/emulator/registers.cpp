// Slots of registers: PTX names thousands, and a block of threads that held them all would not fit into any
// cache.
#include "program.hpp"

#include <algorithm>
#include <queue>
#include <stdexcept>

namespace emulator {
namespace {

// Registers that are needed at the beginning of each basic block, by iteration to a fixed point.
class liveness {
public:
  liveness(std::vector<draft> const& code, int registers)
      : code_(code), words_((static_cast<std::size_t>(registers) + 63) / 64) {
    std::vector<char> leads(code.size() + 1, 0);
    leads[0] = 1;
    for (std::size_t i = 0; i < code.size(); ++i) {
      if (!code[i].successors.empty() || !code[i].falls_through) leads[i + 1] = 1;
      for (std::size_t s : code[i].successors) leads[s] = 1;
    }
    block_of_.resize(code.size());
    for (std::size_t i = 0; i < code.size(); ++i) {
      if (leads[i]) begins_.push_back(i);
      block_of_[i] = begins_.size() - 1;
    }
    begins_.push_back(code.size());
    std::size_t const blocks = begins_.size() - 1;
    in_.assign(blocks, std::vector<std::uint64_t>(words_));
    out_ = in_;
    for (bool changed = true; changed;) {
      changed = false;
      for (std::size_t b = blocks; b-- > 0;) changed = visit(b) || changed;
    }
  }

  // f(register, from, to) for each basic block that a register is needed at the beginning or the end of
  template <class F> void spans(F f) const {
    for (std::size_t b = 0; b + 1 < begins_.size(); ++b) {
      for (std::size_t w = 0; w < words_; ++w) {
        each(in_[b][w], w, [&](int r) { f(r, begins_[b]); });
        each(out_[b][w], w, [&](int r) { f(r, begins_[b + 1] - 1); });
      }
    }
  }

private:
  template <class F> static void each(std::uint64_t bits, std::size_t word, F f) {
    for (; bits != 0; bits &= bits - 1) f(static_cast<int>(word * 64) + __builtin_ctzll(bits));
  }
  bool visit(std::size_t b) {
    std::vector<std::uint64_t> live(words_);
    auto const join = [&](std::size_t to) {
      auto const& other = in_[block_of_[to]];
      for (std::size_t w = 0; w < words_; ++w) live[w] |= other[w];
    };
    std::size_t const last = begins_[b + 1] - 1;
    for (std::size_t s : code_[last].successors) join(s);
    if (code_[last].falls_through && last + 1 < code_.size()) join(last + 1);
    out_[b] = live;
    for (std::size_t i = last + 1; i-- > begins_[b];) {
      draft const& d = code_[i];
      for (auto const& [k, r] : d.defines) {
        if (d.guard < 0) live[word(r)] &= ~bit(r);
      }
      for (auto const& [k, r] : d.uses) live[word(r)] |= bit(r);
      if (d.guard >= 0) live[word(d.guard)] |= bit(d.guard);
    }
    bool const changed = live != in_[b];
    in_[b] = std::move(live);
    return changed;
  }
  static std::size_t word(int r) { return static_cast<std::size_t>(r) / 64; }
  static std::uint64_t bit(int r) { return std::uint64_t{1} << (r % 64); }

  std::vector<draft> const& code_;
  std::size_t words_;
  std::vector<std::size_t> begins_, block_of_;
  std::vector<std::vector<std::uint64_t>> in_, out_;
};

struct span {
  std::size_t from = ~std::size_t{0}, to = 0;
  int slot = -1;
  void include(std::size_t at) {
    from = std::min(from, at);
    to = std::max(to, at);
  }
};

}  // namespace

void assign_slots(function& f, std::vector<draft>& drafts, int registers, std::vector<int> const& fixed) {
  std::vector<span> spans(static_cast<std::size_t>(registers));
  auto const of = [&](int r) -> span& { return spans[static_cast<std::size_t>(r)]; };
  for (std::size_t i = 0; i < drafts.size(); ++i) {
    for (auto const& [k, r] : drafts[i].defines) of(r).include(i);
    for (auto const& [k, r] : drafts[i].uses) of(r).include(i);
    if (drafts[i].guard >= 0) of(drafts[i].guard).include(i);
  }
  liveness(drafts, registers).spans([&](int r, std::size_t at) { of(r).include(at); });

  int slots = 0;
  std::vector<char> is_fixed(spans.size(), 0);
  for (int r : fixed) {
    of(r).slot = slots++;
    is_fixed[static_cast<std::size_t>(r)] = 1;
  }
  std::vector<int> order;
  for (int r = 0; r < registers; ++r) {
    if (!is_fixed[static_cast<std::size_t>(r)] && of(r).from <= of(r).to) order.push_back(r);
  }
  std::sort(order.begin(), order.end(), [&](int a, int b) { return of(a).from < of(b).from; });
  using held = std::pair<std::size_t, int>;
  std::priority_queue<held, std::vector<held>, std::greater<held>> busy;
  std::vector<int> spare;
  for (int r : order) {
    while (!busy.empty() && busy.top().first < of(r).from) {
      spare.push_back(busy.top().second);
      busy.pop();
    }
    if (spare.empty()) {
      of(r).slot = slots++;
    } else {
      of(r).slot = spare.back();
      spare.pop_back();
    }
    busy.emplace(of(r).to, of(r).slot);
  }
  if (slots >= instruction::none) throw std::runtime_error("PTX: too many registers in " + f.name);
  f.slots = static_cast<std::size_t>(slots);
  for (draft& d : drafts) {
    for (auto const& [k, r] : d.defines) d.made.slot[k] = static_cast<std::uint16_t>(of(r).slot);
    for (auto const& [k, r] : d.uses) d.made.slot[k] = static_cast<std::uint16_t>(of(r).slot);
    if (d.guard >= 0) d.made.guard = static_cast<std::uint16_t>(of(d.guard).slot);
    f.code.push_back(d.made);
  }
}

}  // namespace emulator
