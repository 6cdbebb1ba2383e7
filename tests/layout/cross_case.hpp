// One cache in every layout: the same rows, the same life, and what has to be equal afterwards.
#pragma once

#include <kvmeld/kvmeld.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "cross_formats.hpp"
#include "cross_play.hpp"
#include "support/cache_bytes.hpp"
#include "support/random_cache.hpp"

namespace cross_test {

// K or V of one case: rows as they are written, before any layout.
struct contents {
  format const* stored;
  std::uint32_t channels;
  std::vector<std::vector<float_row>> rows, drafts;  // [tracks][tokens]
};

// What one side of the plain cache holds after a compression: every row that was ever written, as bytes.
using raw_rows = std::vector<std::vector<support::byte_list>>;  // [tracks][slots]

inline support::byte_list read_raw(tensor const& x, track t, slot_t s) {
  support::byte_list out;
  for (piece const& p : x.pieces(t, s))
    out.insert(out.end(), x.bytes() + p.offset, x.bytes() + p.offset + p.bytes);
  return out;
}
inline void write_raw(tensor const& x, std::byte* memory, track t, slot_t s, support::byte_list const& row) {
  std::size_t at = 0;
  for (piece const& p : x.pieces(t, s)) {
    std::memcpy(memory + p.offset, row.data() + at, p.bytes);
    at += p.bytes;
  }
}
// A row into a tensor: by plain counting, or where rows are rounded by the layout itself.
inline void write_row(tensor const& x, format const& f, track t, slot_t s, float_row const& row) {
  if (f.exact) return write_raw(x, x.bytes(), t, s, f.encode(row));
  support::put_row(x.view(), t, s, row);
}

template <class F> void for_every_track(shape const& s, F f) {
  for (std::uint32_t q = 0; q < s.sequences; ++q) support::for_tracks(s, q, f);
}

// A tensor of a case, and what its memory should be. Bytes count where `care` is set.
struct candidate {
  struct image {
    support::byte_list bytes, care;
  };
  tensor_ptr x;
  support::byte_list start;
  image after[2];

  void fill(contents const& c, shape const& s) {
    for_every_track(s, [&](track t) {
      for (slot_t i = 0; i < c.rows[t.index].size(); ++i) write_row(*x, *c.stored, t, i, c.rows[t.index][i]);
    });
    start.assign(x->bytes(), x->bytes() + x->memory.size());
  }
  void restore() const { std::copy(start.begin(), start.end(), x->bytes()); }

  // Rows below `lengths` as `rows` has them, those behind too if `all` is set; every other byte as it was.
  void expect(int stage, raw_rows const& rows, std::vector<std::uint32_t> const& lengths, bool exact,
              bool all, shape const& s) {
    image& i = after[stage];
    i.bytes = start;
    i.care.assign(start.size(), std::byte{0xff});
    std::vector<piece> pieces;
    for_every_track(s, [&](track t) {
      for (slot_t n = 0; n < rows[t.index].size(); ++n) {
        if (exact && (all || n < lengths[t.index])) {
          write_raw(*x, i.bytes.data(), t, n, rows[t.index][n]);
        } else {
          x->row(t, n, pieces);
          for (piece const& p : pieces) std::memset(i.care.data() + p.offset, 0, p.bytes);
        }
      }
    });
  }
  std::size_t wrong_bytes(int stage) const {
    image const& i = after[stage];
    std::size_t wrong = 0;
    std::size_t b = 0;
    for (; b + 8 <= start.size(); b += 8) {  // nearly always all of them are right
      std::uint64_t got, wanted, care;
      std::memcpy(&got, x->bytes() + b, 8);
      std::memcpy(&wanted, i.bytes.data() + b, 8);
      std::memcpy(&care, i.care.data() + b, 8);
      for (std::uint64_t off = (got ^ wanted) & care; off != 0; off >>= 8) wrong += (off & 0xff) != 0 ? 1 : 0;
    }
    for (; b < start.size(); ++b) wrong += ((x->bytes()[b] ^ i.bytes[b]) & i.care[b]) == std::byte{0} ? 0 : 1;
    return wrong;
  }
  // Rows further from the plain ones than half a step of storage.
  std::size_t wrong_rows(format const& f, raw_rows const& wanted, std::vector<std::uint32_t> const& lengths,
                         shape const& s) const {
    std::size_t wrong = 0;
    for_every_track(s, [&](track t) {
      for (slot_t n = 0; n < lengths[t.index]; ++n) {
        float_row const got = support::get_row(x->view(), t, n);
        float_row row(got.size());
        std::memcpy(row.data(), wanted[t.index][n].data(), row.size() * sizeof(float));
        float const most = 0.51f * f.step(row);
        bool const good = std::equal(got.begin(), got.end(), row.begin(),
                                     [&](float a, float b) { return !(std::fabs(a - b) > most); });
        wrong += good ? 0 : 1;
      }
    });
    return wrong;
  }
};

// A script, its rows and what becomes of them on plain strided tensors.
class cross_case {
public:
  cross_case(std::uint64_t seed, preset const& p, format const& keys, format const& values,
             bool latent = false)
      : seed_(seed), dice_(seed), preset_(p), latent_(latent) {
    draw_script();
    std::uint32_t k = draw_channels(keys);
    if (p.turns_keys) k += k % 2;
    if (latent) first_ = dice_.below(k);
    script_.extent.key_dim = k;
    script_.extent.value_dim = latent ? dice_.between(1, k - first_) : draw_channels(values);
    keys_ = draw_rows(keys, script_.extent.key_dim, true);
    values_ = draw_rows(values, script_.extent.value_dim, false);
    while (!refused_.empty() || outcomes_.empty()) play_plain();
  }

  // What is wrong on every pair of layouts: told(keys' kind, values' kind, what is wrong or nothing).
  template <class Told> void compare(Told told) {
    std::vector<candidate> k = candidates(keys_, 0), v;
    if (latent_) {
      for (std::size_t i = 0; i < k.size(); ++i) {
        candidate values;
        values.x = latent_over(*k[i].x);
        told(keys_.stored->kinds[i].name, "latent", wrong(k[i], values));
      }
      return;
    }
    v = candidates(values_, 1);
    for (std::size_t i = 0; i < k.size(); ++i) {
      for (std::size_t j = 0; j < v.size(); ++j)
        told(keys_.stored->kinds[i].name, values_.stored->kinds[j].name, wrong(k[i], v[j]));
    }
  }
  // Whether any track is shorter for it.
  bool shrinks() const {
    bool shorter = false;
    for_every_track(script_.extent, [&](track t) {
      shorter = shorter || outcomes_.front().lengths[t.index] < script_.lengths[t.sequence];
    });
    return shorter;
  }
  std::string description() const {
    shape const& s = script_.extent;
    return "seed " + std::to_string(seed_) + ", " + preset_.name + ", " + keys_.stored->name + " keys of " +
           std::to_string(s.key_dim) + ", " + values_.stored->name + " values of " +
           std::to_string(s.value_dim) + ", " + std::to_string(s.layers) + " layers, " +
           std::to_string(s.sequences) + " sequences, " + std::to_string(s.kv_heads) + " heads, capacity " +
           std::to_string(s.capacity) + (script_.tuning == kvmeld::tuning::on ? "" : ", tuning off") +
           (script_.in_two ? ", plan and apply" : "");
  }

private:
  void draw_script() {
    dice& d = dice_;
    script_.seed = d.next();
    script_.extent = {d.between(1, 2), d.between(1, 3), d.between(1, 3), 1, 0, 0, d.between(12, 48)};
    script_.tuning = d.chance(0.7) ? kvmeld::tuning::on : kvmeld::tuning::off;
    script_.scope = d.chance(0.9)   ? kvmeld::plan_scope::head
                    : d.chance(0.5) ? kvmeld::plan_scope::layer
                                    : kvmeld::plan_scope::all_layers;
    script_.fallback = d.chance(0.4) ? kvmeld::shortfall::evict_lowest : kvmeld::shortfall::keep;
    script_.in_two = d.chance(0.25);
    script_.again = d.chance(0.4);
    bool const freezes = d.chance(0.4);
    for (std::uint32_t q = 0; q < script_.extent.sequences; ++q) {
      std::uint32_t const n =
          d.chance(0.1) ? d.below(4) : d.between(script_.extent.capacity / 2, script_.extent.capacity);
      script_.lengths.push_back(n);
      script_.frozen.push_back(freezes ? d.below(n / 3 + 1) : 0);
      script_.ids.push_back(d.below(100));
      if (q == 0 || d.chance(0.8)) script_.compressed.push_back(q);
      script_.drafts.push_back(d.below(kvmeld::min_of(5u, script_.extent.capacity - n + 1)));
      script_.accepted.push_back(d.below(script_.drafts.back() + 1));
    }
    least_ = d.chance(0.7) ? d.between(4, 12) : d.between(4, script_.extent.capacity);
  }
  std::uint32_t draw_channels(format const& f) {
    return f.channels > 1      ? f.channels * dice_.between(1, 2)
           : dice_.chance(0.6) ? 16 * dice_.between(1, 2)
                               : dice_.between(1, 40);
  }

  contents draw_rows(format const& f, std::uint32_t channels, bool keys) {
    contents out{&f, channels, {}, {}};
    out.rows.resize(script_.extent.tracks());
    out.drafts.resize(script_.extent.tracks());
    constexpr support::texture textures[] = {support::texture::noise, support::texture::walk,
                                             support::texture::clusters};
    bool const spoilt = f.exact && dice_.chance(0.1);
    for_every_track(script_.extent, [&](track t) {
      std::uint32_t const n = script_.lengths[t.sequence], all = n + script_.drafts[t.sequence];
      auto rows =
          support::random_rows(dice_, all, channels, keys ? dice_.pick(textures) : support::texture::noise);
      if (spoilt && all != 0 && dice_.chance(0.5))
        rows[dice_.below(all)][dice_.below(channels)] =
            kvmeld::bits_float(dice_.chance(0.5) ? 0x7f800000u : 0x7fc00000u);
      out.drafts[t.index].assign(rows.begin() + n, rows.end());
      rows.resize(n);
      out.rows[t.index] = rows;
    });
    return out;
  }

  // What plain tensors have to hold so that they hold the same numbers.
  contents as_stored(contents const& c) {
    if (c.stored->exact) return c;
    tensor_ptr const x = c.stored->kinds.front().make({script_.extent, c.channels, script_.frozen}, dice_);
    contents out = c;
    for (auto* rows : {&out.rows, &out.drafts}) {
      for_every_track(script_.extent, [&](track t) {
        for (float_row& row : (*rows)[t.index]) {
          support::put_row(x->view(), t, 0, row);
          row = support::get_row(x->view(), t, 0);
        }
      });
    }
    return out;
  }

  void write_plain(tensor const& x, contents const& c, track t, slot_t s, float_row const& row) const {
    write_raw(x, x.bytes(), t, s, c.stored->encode(row));
  }

  void play_plain() {
    refused_.clear();
    outcomes_.clear();
    script_.budgets.assign(script_.extent.tracks(), 0);
    dice d(seed_ + 1);
    for (std::uint32_t& n : script_.budgets) {
      n = script_.scope == kvmeld::plan_scope::head ? d.between(least_, least_ + 6) : least_;
    }
    contents const own[2] = {as_stored(keys_), as_stored(values_)};
    tensor_ptr plain[2];
    written_.assign(script_.extent.tracks(), 0);
    for (int side = 0; side < 2; ++side) {
      contents const& c = own[side];
      if (side == 1 && latent_) {
        plain[1] = latent_over(*plain[0]);
        continue;
      }
      plain[side] = c.stored->plain({script_.extent, c.channels, script_.frozen}, d);
      for_every_track(script_.extent, [&](track t) {
        auto const& rows = c.rows[t.index];
        for (slot_t s = 0; s < rows.size(); ++s) write_plain(*plain[side], c, t, s, rows[s]);
        written_[t.index] = static_cast<std::uint32_t>(rows.size());
      });
    }
    auto const look = [&](int stage, outcome const& o) {
      outcomes_.push_back(o);
      for (int side = 0; side < 2; ++side) {
        rows_[side][stage].assign(script_.extent.tracks(), {});
        for_every_track(script_.extent, [&](track t) {
          for (slot_t s = 0; s < written_[t.index]; ++s)
            rows_[side][stage][t.index].push_back(read_raw(*plain[side], t, s));
        });
      }
      if (stage == 1 || !exact()) return false;
      for_every_track(script_.extent, [&](track t) {
        for (int side = 0; side < (latent_ ? 1 : 2); ++side) {
          for (slot_t i = 0; i < own[side].drafts[t.index].size(); ++i)
            write_plain(*plain[side], own[side], t, o.lengths[t.index] + i, own[side].drafts[t.index][i]);
        }
        written_[t.index] =
            kvmeld::max_of(written_[t.index],
                           o.lengths[t.index] + static_cast<std::uint32_t>(own[0].drafts[t.index].size()));
      });
      return true;
    };
    try {
      preset_.play(script_, {plain[0]->view(), plain[1]->view()}, look);
    } catch (kvmeld::invalid_argument const&
                 refusal) {  // pinned entries leave no room, or heads cannot share plans
      refused_ = refusal.what();
      least_ += 4;
      if (least_ > script_.extent.capacity + 8) script_.scope = kvmeld::plan_scope::head;
      if (least_ > 3 * script_.extent.capacity + 60) throw;
    }
  }

  bool exact() const { return keys_.stored->exact && values_.stored->exact; }

  std::vector<candidate> candidates(contents const& c, int side) {
    std::vector<candidate> out;
    for (kind const& k : c.stored->kinds) {
      candidate x;
      x.x = k.make({script_.extent, c.channels, script_.frozen}, dice_);
      x.fill(c, script_.extent);
      for (int stage = 0; stage < static_cast<int>(outcomes_.size()); ++stage) {
        x.expect(stage, rows_[side][stage], outcomes_[static_cast<std::size_t>(stage)].lengths,
                 c.stored->exact, side == 1, script_.extent);
      }
      out.push_back(std::move(x));
    }
    return out;
  }
  tensor_ptr latent_over(tensor const& keys) const {
    auto x = std::make_unique<tensor>();
    x->row = [](track, slot_t, std::vector<piece>& to) { to.clear(); };
    x->look_through(kvmeld::latent<support::erased_layout>(keys.view(), script_.extent.value_dim, first_));
    return x;
  }

  // The difference between this pair and the plain one; empty where there is none.
  std::string wrong(candidate const& k, candidate const& v) const {
    k.restore();
    v.restore();
    std::string out;
    // A key that was rounded anew may decide otherwise in the next round. Then other chunks run out of pairs,
    // and where nothing is evicted instead, a track may end higher or lower above its budget.
    bool const undecided = !keys_.stored->exact && preset_.rounds_anew;
    int stages = 0;
    auto const look = [&](int stage, outcome const& got) {
      ++stages;
      outcome const& wanted = outcomes_[static_cast<std::size_t>(stage)];
      if (!undecided || script_.fallback == kvmeld::shortfall::evict_lowest) {
        if (got.lengths != wanted.lengths) out += "lengths ";
      } else if (!above_budgets(got.lengths)) {
        out += "lengths below the budgets ";
      }
      if (!undecided) {
        if (got.plan != wanted.plan) out += "plan ";
        if (got.ledger != wanted.ledger) out += "ledger ";
        for (auto const& [x, c, side] : {std::tuple{&k, &keys_, 0}, std::tuple{&v, &values_, 1}}) {
          if (x->start.empty()) continue;
          std::size_t const bytes = x->wrong_bytes(stage);
          if (bytes != 0)
            out += std::to_string(bytes) + (side == 0 ? " bytes of keys " : " bytes of values ");
          if (c->stored->exact || !out.empty()) continue;
          if (x->wrong_rows(*c->stored, rows_[side][stage], wanted.lengths, script_.extent) != 0)
            out += side == 0 ? "rows of keys " : "rows of values ";
        }
      }
      if (!out.empty()) out += stage == 0 ? "after the first compression" : "after the second";
      if (!out.empty() || stage == 1 || !exact()) return false;
      for_every_track(script_.extent, [&](track t) {
        slot_t const from = got.lengths[t.index];
        for (slot_t i = 0; i < keys_.drafts[t.index].size(); ++i) {
          write_row(*k.x, *keys_.stored, t, from + i, keys_.drafts[t.index][i]);
          if (!latent_) write_row(*v.x, *values_.stored, t, from + i, values_.drafts[t.index][i]);
        }
      });
      return true;
    };
    try {
      preset_.play(script_, {k.x->view(), v.x->view()}, look);
    } catch (kvmeld::invalid_argument const& refusal) {
      return std::string("refused: ") + refusal.what();
    }
    if (out.empty() && stages != static_cast<int>(outcomes_.size())) out = "stopped early";
    return out;
  }

  // Whether every track that was above its budget has at least that many entries.
  bool above_budgets(std::vector<std::uint32_t> const& lengths) const {
    bool all = true;
    for_every_track(script_.extent, [&](track t) {
      std::uint32_t const least = std::min(script_.budgets[t.index], script_.lengths[t.sequence]);
      all = all && lengths[t.index] >= least;
    });
    return all;
  }

  std::uint64_t seed_;
  dice dice_;
  preset const& preset_;
  bool latent_;
  script script_;
  std::uint32_t least_ = 0, first_ = 0;
  contents keys_, values_;
  std::vector<std::uint32_t> written_;  // [tracks] slots that ever held a row
  std::string refused_;
  std::vector<outcome> outcomes_;  // of the plain tensors
  raw_rows rows_[2][2];            // of K and V, after each compression
};

}  // namespace cross_test
