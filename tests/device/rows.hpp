// K or V as engines lay them out, here and on a device: on(side) is the layout over that memory, put() sends
// this one's bytes there, same() compares them.
#pragma once

#include <kvmeld/kvmeld.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

namespace device_test {

enum class side { here, there };

/// One block of memory on both sides.
template <class Device, class T> struct doubled {
  explicit doubled(std::vector<T> const& from) : here(from), there(from) {}
  T* on(side s) { return s == side::here ? here.data() : there.data(); }
  void put() { there.put(here); }
  bool same() const {
    std::vector<T> const got = there.get();
    return std::memcmp(got.data(), here.data(), here.size() * sizeof(T)) == 0;
  }
  std::vector<T> here;
  typename Device::template array<T> there;
};

/// Rows of T in memory of `elements`; what there is beside it is derived.
template <class Device, class T> struct rows_of {
  rows_of(kvmeld::shape const& s, std::uint32_t channels, std::size_t elements)
      : extent(s), width(channels), memory(std::vector<T>(elements, T{})) {}
  void put() { memory.put(); }
  bool same() const { return memory.same(); }
  kvmeld::shape extent;
  std::uint32_t width;
  doubled<Device, T> memory;
};

/// A pool of pages in another order than the sequences'.
template <class Device, class T, std::uint32_t Page> struct pool_rows : rows_of<Device, T> {
  static std::uint32_t most(kvmeld::shape const& s) { return kvmeld::ceil_div(s.capacity, Page); }
  static std::uint32_t count(kvmeld::shape const& s) { return s.sequences * most(s); }
  pool_rows(kvmeld::shape const& s, std::uint32_t channels)
      : rows_of<Device, T>(s, channels, std::size_t{count(s)} * s.layers * s.kv_heads * Page * channels),
        numbers(shuffled(count(s))) {}
  static std::vector<std::int32_t> shuffled(std::uint32_t n) {
    std::vector<std::int32_t> out(n);
    for (std::uint32_t i = 0; i < n; ++i) out[i] = static_cast<std::int32_t>(n - 1 - (i ^ 1u) % n);
    return out;
  }
  doubled<Device, std::int32_t> numbers;
};

/// A tensor per layer, heads outside tokens; one page of the second sequence is shared with others.
template <class Device> struct head_pages : pool_rows<Device, typename Device::bfloat16, 16> {
  using base = pool_rows<Device, typename Device::bfloat16, 16>;
  head_pages(kvmeld::shape const& s, std::uint32_t channels)
      : base(s, channels), shared(std::vector<std::uint8_t>(base::count(s), 0)) {
    shared.here[static_cast<std::size_t>(this->numbers.here[base::most(s)])] = 1;
    shared.put();
  }
  auto on(side where) {
    kvmeld::pool_pages const from(
        this->memory.on(where), kvmeld::table_rows(this->numbers.on(where), base::most(this->extent)),
        static_cast<std::uint8_t const*>(shared.on(where)), base::count(this->extent));
    return kvmeld::paged(
        from, 16, kvmeld::dense_pages("LPHTC", base::count(this->extent), 16, this->extent, this->width),
        this->extent, this->width);
  }
  doubled<Device, std::uint8_t> shared;
};

/// The same far from where the pool begins, which is nobody's memory: more elements lie between than 32 bits
/// can count.
template <class Device> struct far_pages : pool_rows<Device, typename Device::bfloat16, 16> {
  using base = pool_rows<Device, typename Device::bfloat16, 16>;
  static constexpr std::int32_t first = 1 << 22;
  far_pages(kvmeld::shape const& s, std::uint32_t channels)
      : base(s, channels), shared(std::vector<std::uint8_t>(base::count(s), 0)) {
    for (std::int32_t& number : this->numbers.here) number += first;
    this->numbers.put();
  }
  auto on(side where) {
    std::uint32_t const pages = first + base::count(this->extent);
    std::int64_t const skipped =
        std::int64_t{first} * 16 * this->extent.layers * this->extent.kv_heads * this->width;
    kvmeld::pool_pages const from(this->memory.on(where) - skipped,
                                  kvmeld::table_rows(this->numbers.on(where), base::most(this->extent)),
                                  static_cast<std::uint8_t const*>(shared.on(where)) - first, pages);
    return kvmeld::paged(from, 16, kvmeld::dense_pages("PLHTC", pages, 16, this->extent, this->width),
                         this->extent, this->width);
  }
  doubled<Device, std::uint8_t> shared;
};

/// vLLM's keys: [page][layer][head][channels / 8][token][8].
template <class Device> struct vllm_keys : pool_rows<Device, typename Device::float16, 16> {
  using base = pool_rows<Device, typename Device::float16, 16>;
  using base::base;
  auto on(side where) {
    kvmeld::shape const& s = this->extent;
    std::int64_t const head = std::int64_t{16} * this->width;
    kvmeld::page_strides const st{head * s.kv_heads * s.layers, head * s.kv_heads, head, 8, 8 * 16};
    kvmeld::pool_pages const from(this->memory.on(where),
                                  kvmeld::table_rows(this->numbers.on(where), base::most(s)));
    return kvmeld::tiled(kvmeld::paged(from, 16, st, s, this->width / 8), 8);
  }
};

/// vLLM's values: [page][layer][head][channel][token], tables as FlashInfer has them.
template <class Device> struct vllm_values : pool_rows<Device, typename Device::float16, 16> {
  using base = pool_rows<Device, typename Device::float16, 16>;
  vllm_values(kvmeld::shape const& s, std::uint32_t channels)
      : base(s, channels), first(std::vector<std::int32_t>(s.sequences + 1)) {
    for (std::uint32_t i = 0; i <= s.sequences; ++i)
      first.here[i] = static_cast<std::int32_t>(i * base::most(s));
    first.put();
  }
  auto on(side where) {
    kvmeld::shape const& s = this->extent;
    kvmeld::pool_pages const from(this->memory.on(where),
                                  kvmeld::table_csr(first.on(where), this->numbers.on(where)));
    return kvmeld::paged(from, 16, kvmeld::dense_pages("PLHCT", base::count(s), 16, s, this->width), s,
                         this->width);
  }
  doubled<Device, std::int32_t> first;
};

/// LMDeploy's: a pointer per block of 5 tokens, rows behind 3 others.
template <class Device> struct pointed_blocks : rows_of<Device, typename Device::bfloat16> {
  using T = typename Device::bfloat16;
  static constexpr std::uint32_t page = 5;
  static std::uint32_t most(kvmeld::shape const& s) { return kvmeld::ceil_div(s.capacity, page); }
  static std::size_t block(kvmeld::shape const& s, std::uint32_t channels) {
    return (std::size_t{s.layers} * s.kv_heads * page + 3) * channels;
  }
  pointed_blocks(kvmeld::shape const& s, std::uint32_t channels)
      : rows_of<Device, T>(s, channels, s.sequences * most(s) * block(s, channels)),
        near(pointers(side::here)),
        far(pointers(side::there)) {}
  std::vector<void*> pointers(side where) {
    std::vector<void*> out;
    for (std::size_t i = this->extent.sequences * most(this->extent); i-- > 0;)
      out.push_back(this->memory.on(where) + i * block(this->extent, this->width));
    return out;
  }
  auto on(side where) {
    std::int64_t const row = this->width, head = row * page;
    kvmeld::pointed_pages<T> const from{
        kvmeld::table_rows<void*>(where == side::here ? near.data() : far.data(), most(this->extent)),
        3 * this->width * sizeof(T)};
    return kvmeld::paged(from, page, {0, head * this->extent.kv_heads, head, row, 1}, this->extent,
                         this->width);
  }
  std::vector<void*> near;
  typename Device::template array<void*> far;
};

/// 8-bit floats with one scale, which counts those that it was too small for.
template <class Device> struct fp8_rows : rows_of<Device, kvmeld::fp8_e4m3> {
  fp8_rows(kvmeld::shape const& s, std::uint32_t channels)
      : rows_of<Device, kvmeld::fp8_e4m3>(s, channels, s.slots() * channels),
        saturated(std::vector<std::uint32_t>(1)) {}
  auto on(side where) {
    return kvmeld::scaled(
        kvmeld::strided<kvmeld::fp8_e4m3>(this->memory.on(where), "LSHTC", this->extent, this->width), 0.004f,
        saturated.on(where));
  }
  void put() {
    this->memory.put();
    saturated.put();
  }
  bool same() const { return this->memory.same() && saturated.same(); }
  doubled<Device, std::uint32_t> saturated;
};

/// Bytes with a scale per row.
template <class Device> struct byte_rows : rows_of<Device, std::int8_t> {
  using float16 = typename Device::float16;
  byte_rows(kvmeld::shape const& s, std::uint32_t channels)
      : rows_of<Device, std::int8_t>(s, channels, s.slots() * channels),
        scales(std::vector<float16>(s.slots(), kvmeld::element_traits<float16>::from_float(0.0f))) {}
  auto on(side where) {
    return kvmeld::int8_rows(
        kvmeld::strided<std::int8_t>(this->memory.on(where), "LSTHC", this->extent, this->width),
        kvmeld::strided<float16>(scales.on(where), "LSHTC", this->extent, 1));
  }
  void put() {
    this->memory.put();
    scales.put();
  }
  bool same() const { return this->memory.same() && scales.same(); }
  doubled<Device, float16> scales;
};

/// ggml's q8_0: blocks of 34 bytes.
template <class Device> struct q8_0_blocks : rows_of<Device, std::uint8_t> {
  q8_0_blocks(kvmeld::shape const& s, std::uint32_t channels)
      : rows_of<Device, std::uint8_t>(s, channels / 32 * 34, s.slots() * channels / 32 * 34) {}
  auto on(side where) {
    return kvmeld::q8_0_rows(
        kvmeld::strided<std::uint8_t>(this->memory.on(where), "LSHTC", this->extent, this->width));
  }
};

/// ggml's q4_0: blocks of 18 bytes.
template <class Device> struct q4_0_blocks : rows_of<Device, std::uint8_t> {
  q4_0_blocks(kvmeld::shape const& s, std::uint32_t channels)
      : rows_of<Device, std::uint8_t>(s, channels / 32 * 18, s.slots() * channels / 32 * 18) {}
  auto on(side where) {
    return kvmeld::q4_0_rows(
        kvmeld::strided<std::uint8_t>(this->memory.on(where), "LSHTC", this->extent, this->width));
  }
};

/// Codes of 4 bits, with `count` elements of T per row in other memory.
template <class Device, class T> struct half_bytes : rows_of<Device, std::uint8_t> {
  half_bytes(kvmeld::shape const& s, std::uint32_t channels, std::uint32_t count)
      : rows_of<Device, std::uint8_t>(s, channels / 2, s.slots() * channels / 2),
        per_row(count),
        beside(std::vector<T>(s.slots() * count, T{})) {}
  auto codes(side where) {
    return kvmeld::strided<std::uint8_t>(this->memory.on(where), "LSTHC", this->extent, this->width);
  }
  auto parameters(side where) { return kvmeld::strided<T>(beside.on(where), "LSHTC", this->extent, per_row); }
  void put() {
    this->memory.put();
    beside.put();
  }
  bool same() const { return this->memory.same() && beside.same(); }
  std::uint32_t per_row;
  doubled<Device, T> beside;
};

/// With a scale and a zero for each half of a row.
template <class Device> struct zero_point_halves : half_bytes<Device, float> {
  zero_point_halves(kvmeld::shape const& s, std::uint32_t channels)
      : half_bytes<Device, float>(s, channels, 4) {}
  auto on(side where) {
    return kvmeld::zero_point_rows(this->codes(where), this->parameters(where), kvmeld::code_order::halves);
  }
};

template <class Device> struct nvfp4_blocks : half_bytes<Device, kvmeld::fp8_e4m3> {
  nvfp4_blocks(kvmeld::shape const& s, std::uint32_t channels)
      : half_bytes<Device, kvmeld::fp8_e4m3>(s, channels, channels / 16) {}
  auto on(side where) { return kvmeld::nvfp4_rows(this->codes(where), this->parameters(where), 0.25f); }
};

/// A ring behind two sinks, one element off every boundary.
template <class Device> struct crooked_ring : rows_of<Device, typename Device::float16> {
  using T = typename Device::float16;
  crooked_ring(kvmeld::shape const& s, std::uint32_t channels)
      : rows_of<Device, T>(s, channels, s.slots() * channels + 1), start(begun(s)) {}
  static std::vector<std::uint32_t> begun(kvmeld::shape const& s) {
    std::vector<std::uint32_t> out;
    for (std::uint32_t i = 0; i < s.sequences; ++i) out.push_back(5 * i + s.capacity - 40);
    return out;
  }
  auto on(side where) {
    return kvmeld::ring(kvmeld::strided<T>(this->memory.on(where) + 1, "LSHTC", this->extent, this->width),
                        this->extent.capacity, 2, static_cast<std::uint32_t const*>(start.on(where)));
  }
  doubled<Device, std::uint32_t> start;
};

/// Along tokens.
template <class Device> struct token_rows : rows_of<Device, typename Device::bfloat16> {
  using T = typename Device::bfloat16;
  token_rows(kvmeld::shape const& s, std::uint32_t channels)
      : rows_of<Device, T>(s, channels, s.slots() * channels) {}
  auto on(side where) {
    return kvmeld::transposed<T>(this->memory.on(where), "LSHCT", this->extent, this->width);
  }
};

/// Found through a layout that lies in memory.
template <class Device> struct moving_rows : rows_of<Device, typename Device::bfloat16> {
  using T = typename Device::bfloat16;
  using plain = kvmeld::strided<T>;
  moving_rows(kvmeld::shape const& s, std::uint32_t channels)
      : rows_of<Device, T>(s, channels, s.slots() * channels),
        near(layout(side::here)),
        far(std::vector<plain>{layout(side::there)}) {}
  plain layout(side where) { return {this->memory.on(where), "LSTHC", this->extent, this->width}; }
  auto on(side where) {
    return kvmeld::relocatable<plain>(where == side::here ? &near : far.data(), this->width);
  }
  plain near;
  typename Device::template array<plain> far;
};

/// A tensor per layer, the last one first; heads outside tokens in every other.
template <class Device> struct layer_tensors : rows_of<Device, typename Device::bfloat16> {
  using T = typename Device::bfloat16;
  using plain = kvmeld::strided<T>;
  layer_tensors(kvmeld::shape const& s, std::uint32_t channels)
      : rows_of<Device, T>(s, channels, s.slots() * channels),
        near(layers(side::here)),
        far(layers(side::there)) {}
  std::vector<plain> layers(side where) {
    kvmeld::shape one = this->extent;
    one.layers = 1;
    std::vector<plain> out;
    for (std::size_t i = this->extent.layers; i-- > 0;)
      out.emplace_back(this->memory.on(where) + i * one.slots() * this->width, i % 2 == 0 ? "LSTHC" : "LSHTC",
                       one, this->width);
    return out;
  }
  auto on(side where) {
    return kvmeld::per_layer<plain>(where == side::here ? near.data() : far.data(), this->width);
  }
  std::vector<plain> near;
  typename Device::template array<plain> far;
};

/// The last channels of keys.
template <class Keys> struct latent_values {
  latent_values(Keys& k, std::uint32_t channels) : keys(k), width(channels) {}
  auto on(side where) { return kvmeld::latent(keys.on(where), width, keys.width - width); }
  void put() {}
  bool same() const { return true; }
  Keys& keys;
  std::uint32_t width;
};

/// A tensor with gaps behind its rows, as a view that the device has of tensors: an mdspan, a Kokkos::View.
template <class Device> struct viewed_rows : rows_of<Device, typename Device::bfloat16> {
  using T = typename Device::bfloat16;
  viewed_rows(kvmeld::shape const& s, std::uint32_t channels)
      : rows_of<Device, T>(s, channels, s.slots() * (channels + 8)) {}
  auto on(side where) {
    return Device::viewed(this->memory.on(where), this->extent, this->width, this->width + 8);
  }
};

}  // namespace device_test
