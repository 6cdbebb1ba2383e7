// A unit of its own: it holds the one instance of the policies, over rows of floats.
#include "shrink_slot.hpp"

#include <kvmeld/cache/merged_cache.hpp>
#include <kvmeld/compose/part_parameters.hpp>

#include <algorithm>
#include <numeric>

namespace llama_cpp {

namespace {

/// Keys or values of one layer as floats, [entry][head][channel]; entry i is cell order[i].
class layer_rows {
public:
  layer_rows(sequence_state::tensor t, bool along_cells, kvmeld::shape const& s,
             std::vector<std::int32_t> const& order)
      : tensor_(t), along_cells_(along_cells), shape_(s), order_(&order) {
    cell_type const& type = cell_type_of(t.type);
    if (along_cells && (type.channels != 1 || type.bytes != t.unit)) {
      throw std::runtime_error("transposed values are " + std::string(type.name) + " of " +
                               std::to_string(t.unit) + " bytes; they must be f32, f16 or bf16");
    }
    floats_ = decoded();
  }

  std::uint32_t channels() const { return channels_; }
  float* data() { return floats_.data(); }

  /// Entry i goes to cell i; it was entry kept[i]. Behind these come the entries from `unseen` on, as they
  /// were. Rows that nothing has merged into keep their bytes, also where a type rounds.
  void write(std::vector<std::int32_t> const& kept, std::size_t unseen) {
    std::vector<std::uint8_t> const before(tensor_.data, tensor_.data + tensor_.bytes);
    std::vector<std::uint8_t> now = before;
    std::vector<float> const at_first = decoded();
    std::size_t const bytes = tensor_.row / shape_.kv_heads;
    each_head(now, [&](auto const& layout, kvmeld::track where) {
      auto const put = [&](std::size_t cell, float const* x, std::size_t from) {
        std::size_t const at = where.kv_head * bytes;
        if (!along_cells_ && std::memcmp(x, &at_first[row(where, from)], channels_ * sizeof *x) == 0) {
          std::memcpy(&now[cell * tensor_.row + at], &before[cell_of(from) * tensor_.row + at], bytes);
        } else {
          layout.encode_row(team_, where, static_cast<std::uint32_t>(cell),
                            [&](std::uint32_t c) { return x[c]; });
        }
      };
      for (std::size_t i = 0; i < kept.size(); ++i)
        put(i, &floats_[row(where, i)], static_cast<std::size_t>(kept[i]));
      for (std::size_t i = 0; unseen + i < order_->size(); ++i)
        put(kept.size() + i, &at_first[row(where, unseen + i)], unseen + i);
    });
    std::copy(now.begin(), now.end(), tensor_.data);
  }

private:
  template <class F> void each_head(std::vector<std::uint8_t>& bytes, F const& use) {
    with_layout(bytes.data(), tensor_.type, tensor_.row, along_cells_, shape_, [&](auto const& layout) {
      for (std::uint32_t head = 0; head < shape_.kv_heads; ++head)
        use(layout, kvmeld::make_track(shape_, 0, 0, head));
    });
  }
  std::vector<float> decoded() {
    std::vector<std::uint8_t> aligned(tensor_.data, tensor_.data + tensor_.bytes);
    std::vector<float> out;
    each_head(aligned, [&](auto const& layout, kvmeld::track where) {
      channels_ = layout.channels();
      out.resize(order_->size() * shape_.kv_heads * channels_);
      for (std::size_t i = 0; i < order_->size(); ++i)
        layout.load_tile(team_, where, static_cast<std::uint32_t>(cell_of(i)), 1, 0, channels_,
                         &out[row(where, i)], channels_);
    });
    return out;
  }
  std::size_t cell_of(std::size_t entry) const { return static_cast<std::size_t>((*order_)[entry]); }
  std::size_t row(kvmeld::track where, std::size_t entry) const {
    return (entry * shape_.kv_heads + where.kv_head) * channels_;
  }

  kvmeld::serial_team team_{nullptr, 0};
  sequence_state::tensor tensor_;
  bool along_cells_;
  kvmeld::shape shape_;
  std::vector<std::int32_t> const* order_;
  std::vector<float> floats_;
  std::uint32_t channels_ = 0;
};

/// Shrinks the first `entries` of all layers, at positions from `first` on, to `left`; returns the kept
/// entries.
std::vector<std::int32_t> shrink_layers(shrinking const& how, std::uint32_t entries, std::int32_t first,
                                        std::uint32_t left, std::vector<layer_rows>& keys,
                                        std::vector<layer_rows>& values) {
  kvmeld::shape extent{1, 1, how.kv_heads, 1, keys[0].channels(), values[0].channels(), entries};
  std::vector<kvmeld::strided<float>> k, v;
  for (layer_rows& rows : keys) k.push_back(kvmeld::strided(rows.data(), "LSTHC", extent, extent.key_dim));
  for (layer_rows& rows : values)
    v.push_back(kvmeld::strided(rows.data(), "LSTHC", extent, extent.value_dim));
  extent.layers = static_cast<std::uint32_t>(keys.size());
  kvmeld::cache_options sizes{extent};
  sizes.bias = kvmeld::bias_support::none;
  sizes.ignore_degree = true;
  sizes.scope = kvmeld::plan_scope::all_layers;
  using all_rows = kvmeld::per_layer<kvmeld::strided<float>>;
  kvmeld::merged_cache cache(
      kvmeld::host_executor(how.threads), how.policy,
      kvmeld::kv{all_rows(k.data(), extent.key_dim), all_rows(v.data(), extent.value_dim)}, sizes);
  if (cache.needs_observation()) {
    throw std::runtime_error(
        "policy is one that needs queries; it must be one that reads keys and values alone, because a file "
        "has no queries");
  }
  cache.open(0, entries);
  cache.shift(0, first);
  cache.compress({0}, kvmeld::budget::entries(left));
  auto const ref = cache.ref();
  auto const any = ref.where(0, 0, 0);
  if (ref.length(any) != left) {
    throw std::runtime_error("policy is one that leaves " + std::to_string(ref.length(any)) +
                             " entries; it must leave " + std::to_string(left));
  }
  std::vector<std::int32_t> kept;
  for (std::uint32_t slot = 0; slot < left; ++slot) kept.push_back(ref.position(any, slot) - first);
  return kept;
}

}  // namespace

std::vector<std::uint8_t> shrink_slot(sequence_state& state, shrinking const& how) {
  std::vector<std::int32_t> const order = state.order();
  std::uint32_t const entries = state.cells();
  if (how.cells > entries) {
    throw std::runtime_error("number of cells is " + std::to_string(how.cells) + "; it must be at most " +
                             std::to_string(entries) + ", which the file has");
  }
  if (how.tail >= how.cells) {
    throw std::runtime_error("tail is " + std::to_string(how.tail) + " cells; it must be fewer than " +
                             std::to_string(how.cells) + ", the cells that stay");
  }
  auto const position = [&](std::uint32_t entry) {
    return state.position(static_cast<std::uint32_t>(order[entry]));
  };
  std::vector<std::int32_t> kept(how.cells), positions;
  if (how.cells == entries) {
    for (std::uint32_t i = 0; i < entries; ++i) positions.push_back(position(i));
    return state.shortened(order, positions);
  }
  std::uint32_t tail = 0;
  while (tail < how.tail && (tail == 0 || position(entries - tail - 1) + 1 >= position(entries - tail)))
    ++tail;
  std::uint32_t const seen = entries - tail, left = how.cells - tail;
  std::uint32_t follow = 1;  // cells whose positions follow one another
  while (follow < seen && position(follow) == position(follow - 1) + 1) ++follow;
  if (follow < seen && kvmeld::compose::rope_of(how.policy).active()) {
    throw std::runtime_error("policy is one that turns keys back; it must be another one, because positions "
                             "of cells repeat or are "
                             "missing in the file, as in one that was shrunk: it does not say for which "
                             "positions keys are rotated");
  }
  kvmeld::shape const s{1, 1, how.kv_heads, 1, 0, 0, entries};
  std::vector<layer_rows> keys, values;
  for (std::uint32_t layer = 0; layer < state.layers(); ++layer) {
    keys.emplace_back(state.keys(layer), false, s, order);
    values.emplace_back(state.values(layer), state.transposed(), s, order);
  }
  std::vector<std::int32_t> const stays =
      shrink_layers(how, seen, follow == seen ? position(0) : 0, left, keys, values);
  for (std::uint32_t layer = 0; layer < state.layers(); ++layer) {
    keys[layer].write(stays, seen);
    values[layer].write(stays, seen);
  }
  std::iota(kept.begin(), kept.end(), 0);
  // Not before the tail's, where the file has a gap.
  std::int32_t const before =
      tail == 0 ? position(seen - 1) : std::max(position(seen - 1), position(seen) - 1);
  positions.assign(left, before);
  for (std::uint32_t i = seen; i < entries; ++i) positions.push_back(position(i));
  // A llama-server that goes on before the tail would find windows or recurrent states there, and no cells of
  // full attention. It does so if the window reaches as far back as it has to, or if a checkpoint ends there.
  std::int32_t const tail_begins = before + 1;
  std::int64_t const reach = std::int64_t{tail_begins} - std::int64_t{how.window};
  if (state.window_layers() != 0 && reach <= 0) {
    throw std::runtime_error("number of tokens before the tail is " + std::to_string(tail_begins) +
                             "; it must be above " + std::to_string(how.window) +
                             ", the model's window: what is shorter, layers with a window hold whole");
  }
  return state.shortened(kept, positions, static_cast<std::int32_t>(std::max(reach, std::int64_t{0})),
                         tail_begins);
}

}  // namespace llama_cpp
