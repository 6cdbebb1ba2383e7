// A sequence of llama.cpp made shorter from outside: llama_state_seq_get_data gives its cells as bytes,
// kvmeld merges where they lie in these bytes, and llama_state_seq_set_data takes fewer cells back. Needs no
// header of llama.cpp. shrink_slot.hpp does this to files.
#pragma once

#include <kvmeld/kvmeld.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace llama_cpp {

/// The bytes of llama_state_seq_get_data: two words and the state. The state is two words (streams, cells);
/// per cell its position, a one, its sequence; two words (values transposed, layers), since files of version
/// 4 two more (sizes of the rotations of keys and values); per layer the keys' type, row size and rows
/// [cell][head][channel]; per layer the values likewise, or where they are transposed (no flash attention)
/// type, element size, channels of all heads, and [head][channel][cell].
/// Models whose layers differ have more behind it: a second cache, of the layers with a window, or the state
/// of recurrent layers; and a llama-server adds the checkpoints that it has of these. What is said here of
/// cells and layers is said of the first cache: that of the layers with full attention.
class sequence_state {
public:
  static constexpr std::size_t layer_header = 12, cell_bytes = 12;

  /// The state begins at bytes[begin]; what is before it stays as it is. `recurrent`: the model has recurrent
  /// layers, whose state is not looked at.
  explicit sequence_state(std::vector<std::uint8_t> bytes, std::size_t begin = 8, bool recurrent = false)
      : bytes_(std::move(bytes)), begin_(begin) {
    if (word(begin_) != 1) {
      throw std::runtime_error("sequence_state: number of streams is " + std::to_string(word(begin_)) +
                               "; it must be 1");
    }
    if (word(begin_ + 4) == 0) throw std::runtime_error("the state has no cells");
    for (std::size_t words : header_words) {
      cache const first = cache_at(begin_, words);
      if (!first.whole || first.end > bytes_.size()) continue;
      if (first.end == bytes_.size() && !at_.whole) at_ = first;
      for (std::size_t more : header_words) {
        cache const second = cache_at(first.end, more);
        if (!second.whole || word(first.end) != 1 || second.end > bytes_.size()) continue;
        if (!alike(first) || !alike(second)) continue;
        at_ = first;
        window_ = second;
      }
      if (recurrent && !at_.whole && alike(first)) at_ = first;
    }
    if (!at_.whole) {
      throw std::runtime_error(
          "the state is cut off, or not one of attention (llama.cpp 0.5.0 and build 11549 were tried); the "
          "state of a model with recurrent layers cannot be read without its GGUF");
    }
    if (!alike(at_)) throw std::runtime_error("the state's layers differ in type or size of their rows");
    behind_ = window_.whole ? window_.end : at_.end;
    checkpoints_at_ = behind_;
    while (checkpoints_at_ < bytes_.size() && !read_checkpoints(checkpoints_at_)) ++checkpoints_at_;
    if (!recurrent && behind_ != bytes_.size() && checkpoints_at_ != behind_) {
      throw std::runtime_error(
          std::to_string(bytes_.size() - behind_) +
          " bytes behind the state are not known (those of a llama-server of build 11549 are)");
    }
  }

  std::uint32_t cells() const { return at_.cells; }
  std::uint32_t layers() const { return at_.layers; }
  /// The layers with a window, and the cells that these have; 0: the state has no second cache.
  std::uint32_t window_layers() const { return window_.layers; }
  std::uint32_t window_cells() const { return window_.cells; }
  bool transposed() const { return at_.transposed; }
  /// Channels of the Hadamard matrix that llama.cpp rotated keys by before it rounded them; 0: none.
  std::uint32_t key_rotation() const { return at_.keys - at_.layout == 16 ? word(at_.layout + 8) : 0; }
  std::int32_t position(std::uint32_t cell) const { return position(at_, cell); }

  /// Keys or values of one layer.
  struct tensor {
    std::uint8_t* data;
    std::size_t bytes;
    std::uint32_t type;  ///< ggml's number
    std::uint32_t unit;  ///< bytes of a row, or of an element where values are transposed
    std::size_t row;     ///< bytes of a cell
  };
  tensor keys(std::uint32_t layer) { return tensor_at(at_.keys + layer * at_.key_layer, at_.key_layer); }
  tensor values(std::uint32_t layer) {
    return tensor_at(at_.values + layer * at_.value_layer, at_.value_layer);
  }

  /// Cells in the order of their positions, those of one position as they lie: a block table of pages of one
  /// token.
  std::vector<std::int32_t> order() const {
    std::vector<std::int32_t> out(at_.cells);
    std::iota(out.begin(), out.end(), 0);
    std::stable_sort(out.begin(), out.end(), [&](std::int32_t a, std::int32_t b) {
      return position(static_cast<std::uint32_t>(a)) < position(static_cast<std::uint32_t>(b));
    });
    return out;
  }

  /// The layouts of both, for T the type of the cache (half by default, float); `order` outlives them.
  template <class T> auto layouts(kvmeld::shape const& s, std::int32_t const* order) {
    std::int64_t const d = s.key_dim, row = d * s.kv_heads, n = at_.cells;
    auto const elements = [](std::size_t bytes) { return static_cast<std::int64_t>(bytes / sizeof(T)); };
    if (at_.key_layer != layer_header + sizeof(T) * static_cast<std::size_t>(n * row) ||
        at_.layers != s.layers)
      throw std::runtime_error("the state's layers, heads or element type are not those of the shape");
    kvmeld::page_strides const by_cell{row, elements(at_.key_layer), d, 0, 1};
    kvmeld::page_strides const plain{row, elements(at_.value_layer), d, 0, 1};
    kvmeld::page_strides const along_cells{1, elements(at_.value_layer), d * n, 0, n};
    auto const table = kvmeld::table_rows(order, s.capacity);
    auto const base = [&](std::size_t at) { return reinterpret_cast<T*>(bytes_.data() + at); };
    return kvmeld::kv{
        kvmeld::paged(kvmeld::pool_pages(base(at_.keys + layer_header), table), 1, by_cell, s, s.key_dim),
        kvmeld::paged(kvmeld::pool_pages(base(at_.values + layer_header), table), 1,
                      at_.transposed ? along_cells : plain, s, s.value_dim)};
  }

  /// How many of the server's checkpoints end at a token at `position` or behind it.
  std::size_t checkpoints(std::int32_t position = 0) const {
    return static_cast<std::size_t>(std::count_if(checkpoints_.begin(), checkpoints_.end(),
                                                  [&](checkpoint const& c) { return c.last >= position; }));
  }

  /// The bytes of a state of the cells kept[0], kept[1], .. at these positions. Layers with a window keep the
  /// cells at positions from `window_from` on. Checkpoints stay that end at `checkpoint_from` or behind it.
  std::vector<std::uint8_t> shortened(std::vector<std::int32_t> const& kept,
                                      std::vector<std::int32_t> const& positions,
                                      std::int32_t window_from = 0, std::int32_t checkpoint_from = 0) const {
    std::vector<std::uint8_t> out(bytes_.begin(), bytes_.begin() + static_cast<std::ptrdiff_t>(begin_));
    put_cache(out, at_, kept, positions);
    std::vector<std::int32_t> seen, at;
    for (std::uint32_t cell = 0; cell < window_.cells; ++cell) {
      if (position(window_, cell) < window_from) continue;
      seen.push_back(static_cast<std::int32_t>(cell));
      at.push_back(position(window_, cell));
    }
    if (window_.whole) put_cache(out, window_, seen, at);
    put(out, behind_, checkpoints_at_ - behind_);
    if (checkpoints_at_ == bytes_.size()) return out;
    put(out, checkpoints_at_, checkpoints_header - 4);
    put_word(out, static_cast<std::uint32_t>(checkpoints(checkpoint_from)));
    for (checkpoint const& c : checkpoints_)
      if (c.last >= checkpoint_from) put(out, c.begin, c.end - c.begin);
    return out;
  }

private:
  /// Words between the cells and the tensors, by the file's version.
  static constexpr std::size_t header_words[] = {2, 4};

  /// Where the parts of a cache begin.
  struct cache {
    std::uint32_t cells = 0, layers = 0;
    bool transposed = false;
    std::size_t begin = 0, layout = 0, keys = 0, key_layer = 0, values = 0, value_layer = 0, end = 0;
    bool whole = false;  ///< all counts are above 0; `end` may be behind the end of the bytes
  };
  cache cache_at(std::size_t begin, std::size_t words) const {
    cache c;
    c.begin = begin;
    c.cells = word(begin + 4);
    c.layout = begin + 8 + bytes_of(c.cells, cell_bytes);
    c.transposed = word(c.layout) != 0;
    c.layers = word(c.layout + 4);
    c.keys = c.layout + 4 * words;
    c.key_layer = layer_header + bytes_of(c.cells, word(c.keys + 4));
    c.values = c.keys + bytes_of(c.layers, c.key_layer);
    std::size_t const columns = c.transposed ? word(c.values + 8) : 1;
    c.value_layer = layer_header + bytes_of(c.cells, bytes_of(columns, word(c.values + 4)));
    c.end = c.values + bytes_of(c.layers, c.value_layer);
    c.whole = c.cells != 0 && c.layers != 0 && c.key_layer > layer_header && c.value_layer > layer_header;
    return c;
  }
  /// More than there are if the product is.
  std::size_t bytes_of(std::size_t count, std::size_t each) const {
    return each != 0 && count > bytes_.size() / each ? bytes_.size() + 1 : count * each;
  }
  bool same_headers(std::size_t a, std::size_t b) const {
    return std::equal(&bytes_[a], &bytes_[a] + layer_header, &bytes_[b]);
  }
  /// Whether all layers of a whole cache have rows of one type and size.
  bool alike(cache const& c) const {
    for (std::uint32_t layer = 1; layer < c.layers; ++layer) {
      if (!same_headers(c.keys + layer * c.key_layer, c.keys) ||
          !same_headers(c.values + layer * c.value_layer, c.values))
        return false;
    }
    return true;
  }
  std::int32_t position(cache const& c, std::uint32_t cell) const {
    return static_cast<std::int32_t>(word(c.begin + 8 + cell * cell_bytes));
  }
  void put(std::vector<std::uint8_t>& out, std::size_t from, std::size_t size) const {
    auto const at = bytes_.begin() + static_cast<std::ptrdiff_t>(from);
    out.insert(out.end(), at, at + static_cast<std::ptrdiff_t>(size));
  }
  static void put_word(std::vector<std::uint8_t>& out, std::uint32_t value) {
    std::uint8_t raw[4];
    std::memcpy(raw, &value, 4);
    out.insert(out.end(), raw, raw + 4);
  }
  /// Adds a cache with the cells kept[0], kept[1], .. at these positions.
  void put_cache(std::vector<std::uint8_t>& out, cache const& c, std::vector<std::int32_t> const& kept,
                 std::vector<std::int32_t> const& positions) const {
    put(out, c.begin, 4);
    put_word(out, static_cast<std::uint32_t>(kept.size()));
    for (std::size_t i = 0; i < kept.size(); ++i) {
      put_word(out, static_cast<std::uint32_t>(positions[i]));
      put(out, c.begin + 8 + static_cast<std::size_t>(kept[i]) * cell_bytes + 4, cell_bytes - 4);
    }
    put(out, c.layout, c.keys - c.layout);
    auto const put_tensor = [&](std::size_t at, std::size_t layer_bytes, bool along_cells) {
      for (std::uint32_t layer = 0; layer < c.layers; ++layer, at += layer_bytes) {
        put(out, at, layer_header);
        std::size_t const size = word(at + 4);  // of an element, or of a row
        std::size_t const columns = along_cells ? word(at + 8) : 1;
        for (std::size_t column = 0; column < columns; ++column)
          for (std::int32_t cell : kept)
            put(out, at + layer_header + (column * c.cells + static_cast<std::size_t>(cell)) * size, size);
      }
    };
    put_tensor(c.keys, c.key_layer, false);
    put_tensor(c.values, c.value_layer, c.transposed);
  }
  tensor tensor_at(std::size_t at, std::size_t layer_bytes) {
    std::size_t const bytes = layer_bytes - layer_header;
    return {&bytes_[at] + layer_header, bytes, word(at), word(at + 4), bytes / at_.cells};
  }
  /// A state of the layers that cannot go back, which a server makes on its way: tokens (8 bytes), first and
  /// last position (4 each), and sizes (8 each) and bytes of what the model and a draft hold, and of the
  /// draft's own state.
  struct checkpoint {
    std::int32_t last;
    std::size_t begin, end;
  };
  static constexpr std::size_t checkpoints_header = 12;  ///< "SCKP", a version, a number
  static constexpr std::size_t checkpoint_header = 16;
  /// Reads the checkpoints at bytes[at] if they are all that is left.
  bool read_checkpoints(std::size_t at) {
    if (word(at) != 0x504b4353u || word(at + 4) != 1) return false;
    if (word(at + 8) > (bytes_.size() - at) / checkpoint_header) return false;
    std::vector<checkpoint> found(word(at + 8));
    std::size_t next = at + checkpoints_header;
    for (checkpoint& c : found) {
      c = {static_cast<std::int32_t>(word(next + 12)), next, next + checkpoint_header};
      for (int part = 0; part < 3; ++part) {
        std::uint64_t const size = std::uint64_t{word(c.end + 4)} << 32 | word(c.end);
        if (c.end + 8 > bytes_.size() || size > bytes_.size() - c.end - 8) return false;
        c.end += 8 + static_cast<std::size_t>(size);
      }
      next = c.end;
    }
    if (next != bytes_.size()) return false;
    checkpoints_ = std::move(found);
    return true;
  }
  /// 0 behind the end.
  std::uint32_t word(std::size_t at) const {
    std::uint32_t value = 0;
    if (at + 4 <= bytes_.size()) std::memcpy(&value, bytes_.data() + at, 4);
    return value;
  }

  std::vector<std::uint8_t> bytes_;
  std::size_t begin_;
  cache at_;      ///< of the layers with full attention
  cache window_;  ///< of the layers with a window; not whole: there is none
  std::size_t behind_ = 0,
              checkpoints_at_ = 0;  ///< where the state of recurrent layers and checkpoints begin
  std::vector<checkpoint> checkpoints_;
};

/// What the shortened sequence is read with.
struct reading {
  bool degrees = false;  ///< log degrees are added to the logits (kq_bias.hpp)
  bool one_plan = true;  ///< the same entries merge in all heads and layers
};

/// Makes one sequence shorter, as often as wanted; remembers degrees and scores in between. A cell is a slot
/// of all layers and heads, so they stay equally long; its position serves the causal mask only, which sees
/// all of what is held.
template <class T, class Policy> class sequence_shortener {
public:
  /// `extent` of one sequence, `capacity` the most cells.
  sequence_shortener(kvmeld::shape const& extent, Policy policy, reading how = {})
      : policy_(policy), sizes_{extent} {
    sizes_.scope = how.one_plan ? kvmeld::plan_scope::all_layers : kvmeld::plan_scope::head;
    sizes_.bias = how.degrees ? kvmeld::bias_support::per_head : kvmeld::bias_support::none;
    sizes_.ignore_degree = !how.degrees;
  }

  /// The sequence's state down to a share of the tokens it has been given so far. Cells of the result are in
  /// the order of the entries.
  std::vector<std::uint8_t> shorten(std::vector<std::uint8_t> bytes, double share) {
    sequence_state state(std::move(bytes));
    if (state.window_layers() != 0) {
      throw std::runtime_error(
          "number of caches in the state is 2, as of a model with a sliding window; it must be 1");
    }
    std::vector<std::int32_t> order = state.order();
    auto const tensors = state.layouts<T>(sizes_.extent, order.data());
    if (!cache_) {
      cache_.emplace(kvmeld::host_executor(), policy_, tensors, sizes_);
      cache_->open(0, state.cells());
    } else {
      std::uint32_t const held = cache_->longest(0);
      if (state.cells() < held) throw std::runtime_error("the sequence lost cells since it was shortened");
      cache_->rebind(tensors);
      cache_->append({0}, {state.cells() - held});
      cache_->commit({0}, {state.cells() - held});
    }
    cache_->compress({0}, kvmeld::budget::ratio(share));
    auto const ref = cache_->ref();
    auto const any = ref.where(0, 0, 0);
    std::vector<std::int32_t> positions(ref.length(any));
    for (std::uint32_t slot = 0; slot < positions.size(); ++slot) positions[slot] = ref.position(any, slot);
    order.resize(positions.size());
    return state.shortened(order, positions);
  }
  std::uint32_t entries() const { return cache_ ? cache_->longest(0) : 0; }
  /// [layer][KV head][entry], natural logarithms.
  std::vector<float> log_degrees() const {
    std::vector<float> out;
    auto const ref = cache_->ref();
    for (std::uint32_t layer = 0; layer < sizes_.extent.layers; ++layer)
      for (std::uint32_t head = 0; head < sizes_.extent.kv_heads; ++head)
        for (std::uint32_t slot = 0; slot < entries(); ++slot)
          out.push_back(ref.log_degree(ref.where(layer, 0, head), slot));
    return out;
  }

private:
  using rows = kvmeld::paged<kvmeld::pool_pages<T>>;
  Policy policy_;
  kvmeld::cache_options sizes_;
  std::optional<kvmeld::merged_cache<kvmeld::host_executor, Policy, rows, rows>> cache_;
};

}  // namespace llama_cpp
