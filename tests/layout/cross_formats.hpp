// The ways to store K or V: number formats, each with the layouts that keep it, and how coarse it is.
#pragma once

#include "any_pages.hpp"
#include "any_tensor.hpp"
#include "tensors.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#if __has_include(<cuda/std/mdspan>)
#include <cuda/std/mdspan>
#endif

namespace cross_test {

using float_row = std::vector<float>;

struct kind {
  std::string name;
  std::function<tensor_ptr(order const&, dice&)> make;
};

struct format {
  std::string name;
  bool exact;  // rows keep their bits; else they are rounded anew by every merge
  std::vector<kind> kinds;
  std::function<tensor_ptr(order const&, dice&)> plain;        // what they are compared with
  std::function<support::byte_list(float_row const&)> encode;  // a row of `plain`
  std::function<float(float_row const&)> step;                 // of the largest element, where not exact
  std::uint32_t channels;                                      // a multiple of these
};

template <class T> support::byte_list encode_row_of(float_row const& row) {
  std::vector<T> out;
  for (float x : row) out.push_back(kvmeld::element_traits<T>::from_float(x));
  return support::bytes_of(out);
}

#if __has_include(<cuda/std/mdspan>)
// Of all five extents, channels innermost or outermost.
template <class T> tensor_ptr mdspan_tensor(order const& o, dice& d) {
  namespace md = cuda::std;
  shape const& s = o.extent;
  memory_of<T> m("mdspan", s.slots() * o.channels, d);
  md::mdspan<T, md::dextents<std::size_t, 5>> const span(m.base, s.layers, s.sequences, s.kv_heads,
                                                         s.capacity, o.channels);
  if (d.chance(0.5)) {
    return m.finish(kvmeld::from_mdspan(span), o.channels, [=](track t, slot_t slot, std::uint32_t c) {
      return count_up("LSHTC", o.extent, o.channels, t, slot, c);
    });
  }
  md::mdspan<T, md::dextents<std::size_t, 5>, md::layout_left> const left(m.base, s.layers, s.sequences,
                                                                          s.kv_heads, s.capacity, o.channels);
  return m.finish(kvmeld::from_mdspan(left), o.channels, [=](track t, slot_t slot, std::uint32_t c) {
    return count_up("CTHSL", o.extent, o.channels, t, slot, c);
  });
}
#endif

template <class T> std::vector<kind> plain_kinds() {
  std::vector<kind> out;
  for (char const* letters : {"LSTHC", "LSHTC", "SLTHC", "LSHCT"}) {
    out.push_back(
        {letters, [letters](order const& o, dice& d) { return dense_tensor<T>(letters, letters, o, d); }});
  }
  out.push_back({"fused", fused_tensor<T>});
  for (std::uint32_t width : {8u, 16u}) {
    std::string const name = "tiled " + std::to_string(width);
    out.push_back({name, [=](order const& o, dice& d) { return tiled_tensor<T>("tiled", width, o, d); }});
  }
  out.push_back({"vLLM's keys", vllm_keys_tensor<T>});
  out.push_back({"vLLM's values", vllm_values_tensor<T>});
  for (auto const& [name, letters] : {std::pair{"NHD", "LTH"}, {"HND", "LHT"}, {"layers in pages", "HTL"}}) {
    out.push_back(
        {name, [n = name, l = letters](order const& o, dice& d) { return paged_tensor<T>(n, l, o, d); }});
  }
  out.push_back({"CSR", csr_tensor<T>});
  out.push_back({"folded heads", folded_tensor<T>});
  out.push_back({"blocks", blocks_tensor<T>});
  for (char const* letters : {"LSHTC", "SLHCT"}) {
    out.push_back({std::string("ring ") + letters,
                   [letters](order const& o, dice& d) { return ring_tensor<T>(letters, o, d); }});
  }
  out.push_back(
      {"relocatable", [](order const& o, dice& d) { return relocatable_tensor<T>("LHSCT", o, d); }});
  out.push_back({"per layer", per_layer_tensor<T>});
#if __has_include(<cuda/std/mdspan>)
  out.push_back({"mdspan", mdspan_tensor<T>});
#endif
  return out;
}

template <class T> format exact_format(char const* name) {
  return {name,
          true,
          plain_kinds<T>(),
          [](order const& o, dice& d) { return dense_tensor<T>("plain", "LSHTC", o, d); },
          encode_row_of<T>,
          [](float_row const&) { return 0.0f; },
          1};
}

// Codes of type T in a strided tensor or in pages, behind a layout that `wrap` makes of them and of `tail`
// bytes behind them.
template <class T, class Wrap>
tensor_ptr coded_tensor(char const* name, bool in_pages, order const& o, std::uint32_t codes,
                        std::size_t tail, dice& d, Wrap wrap) {
  auto const end_of = [&](memory_of<T>& m) { return m.out->bytes() + (m.out->memory.size() - tail) / 8 * 8; };
  if (!in_pages) {
    memory_of<T> m(name, o.extent.slots() * codes + tail + 8, d);
    return m.finish(
        wrap(kvmeld::strided<T>(m.base, "LSTHC", o.extent, codes), end_of(m)), codes,
        [=](track t, slot_t s, std::uint32_t c) { return count_up("LSTHC", o.extent, codes, t, s, c); });
  }
  page_draw const p(o.extent.capacity, o.extent.sequences, d);
  page_form const f("LTH", o.extent, p.size, codes, d);
  memory_of<T> m(name, p.count * f.page + tail + 8, d);
  kvmeld::pool_pages const from(m.base, kvmeld::table_rows(m.out->keep_list(p.table), p.per_row));
  return m.finish(wrap(kvmeld::paged(from, p.size, f.strides(), o.extent, codes), end_of(m)), codes,
                  [=](track t, slot_t s, std::uint32_t c) {
                    return p.page(t.sequence, s) * f.page + t.layer * f.layer + t.kv_head * f.head +
                           s % p.size * f.token + c;
                  });
}

template <class T> format fp8_format(char const* name) {
  auto const make = [name](bool in_pages) {
    return [=](order const& o, dice& d) {
      return coded_tensor<T>(name, in_pages, o, o.channels, 0, d,
                             [](auto const& codes, void*) { return kvmeld::scaled(codes, 0.125f); });
    };
  };
  float const per_step = std::is_same_v<T, kvmeld::fp8_e4m3> ? 0x1p7f : 0x1p8f;
  return {name,
          false,
          {{name, make(false)}, {std::string(name) + " in pages", make(true)}},
          [](order const& o, dice& d) { return dense_tensor<float>("plain", "LSHTC", o, d); },
          encode_row_of<float>,
          [=](float_row const& row) {
            return layout_test::element_step<kvmeld::float16>(row.data(),
                                                              static_cast<std::uint32_t>(row.size())) *
                   per_step;
          },
          1};
}

// The largest element over so many codes.
inline float step_of(float_row const& row, float codes) {
  return layout_test::element_step<kvmeld::float16>(row.data(), static_cast<std::uint32_t>(row.size())) *
         (0x1p10f / codes);
}

// Scales lie behind the codes.
template <class Scale> format int8_format(char const* name) {
  auto const make = [name](bool in_pages) {
    return [=](order const& o, dice& d) {
      std::byte* memory = nullptr;
      tensor_ptr x = coded_tensor<std::int8_t>(
          name, in_pages, o, o.channels, o.extent.slots() * sizeof(Scale), d,
          [&](auto const& codes, std::byte* at) {
            memory = at;
            return kvmeld::int8_rows(
                codes, kvmeld::strided<Scale>(reinterpret_cast<Scale*>(at), "SLTHC", o.extent, 1));
          });
      std::size_t const scales = static_cast<std::size_t>(memory - x->bytes());
      x->row = [=, codes = x->row](track t, slot_t s, std::vector<piece>& to) {
        codes(t, s, to);
        to.push_back({scales + count_up("SLTHC", o.extent, 1, t, s, 0) * sizeof(Scale), sizeof(Scale)});
      };
      return x;
    };
  };
  return {name,
          false,
          {{name, make(false)}, {std::string(name) + " in pages", make(true)}},
          [](order const& o, dice& d) { return dense_tensor<float>("plain", "LSHTC", o, d); },
          encode_row_of<float>,
          [](float_row const& row) { return step_of(row, 120); },
          1};
}

// Blocks of 32 channels; `codes`: a step is the largest element over so many.
template <template <class> class Rows>
format ggml_format(char const* name, std::uint32_t block_bytes, float codes) {
  auto const make = [=](bool in_pages) {
    return [=](order const& o, dice& d) {
      return coded_tensor<std::uint8_t>(
          name, in_pages, o, o.channels / 32 * block_bytes, 0, d,
          [](auto const& bytes, void*) { return Rows<std::decay_t<decltype(bytes)>>(bytes); });
    };
  };
  return {name,
          false,
          {{name, make(false)}, {std::string(name) + " in pages", make(true)}},
          [](order const& o, dice& d) { return dense_tensor<float>("plain", "LSHTC", o, d); },
          encode_row_of<float>,
          [=](float_row const& row) { return step_of(row, codes); },
          32};
}

// Codes with scales, and what else there is per group, behind them: `tail` elements of type T per row.
template <class T, class Make>
format beside_format(char const* name, std::uint32_t per_byte, std::uint32_t channels, float codes,
                     std::function<std::uint32_t(std::uint32_t)> const& tail_of, Make rows) {
  auto const make = [=](bool in_pages) {
    return [=](order const& o, dice& d) {
      std::byte* memory = nullptr;
      std::uint32_t const tail = tail_of(o.channels);
      tensor_ptr x = coded_tensor<std::uint8_t>(
          name, in_pages, o, o.channels / per_byte, o.extent.slots() * tail * sizeof(T), d,
          [&](auto const& bytes, std::byte* at) {
            memory = at;
            return rows(bytes, kvmeld::strided<T>(reinterpret_cast<T*>(at), "SLTHC", o.extent, tail));
          });
      std::size_t const beside = static_cast<std::size_t>(memory - x->bytes());
      x->row = [=, codes_of = x->row](track t, slot_t s, std::vector<piece>& to) {
        codes_of(t, s, to);
        to.push_back({beside + count_up("SLTHC", o.extent, tail, t, s, 0) * sizeof(T), tail * sizeof(T)});
      };
      return x;
    };
  };
  return {name,
          false,
          {{name, make(false)}, {std::string(name) + " in pages", make(true)}},
          [](order const& o, dice& d) { return dense_tensor<float>("plain", "LSHTC", o, d); },
          encode_row_of<float>,
          [=](float_row const& row) { return step_of(row, codes); },
          channels};
}

inline std::vector<format> packed_formats() {
  using kvmeld::code_order;
  std::vector<format> out;
  out.push_back(beside_format<float>(
      "8-bit codes with a zero", 1, 1, 125.0f, [](std::uint32_t) { return 2u; },
      [](auto const& bytes, auto const& pairs) { return kvmeld::zero_point_rows(bytes, pairs); }));
  out.push_back(beside_format<float>(
      "4-bit halves with a zero", 2, 2, 7.4f, [](std::uint32_t) { return 2u; },
      [](auto const& bytes, auto const& pairs) {
        return kvmeld::zero_point_rows(bytes, pairs, code_order::halves);
      }));
  out.push_back(beside_format<float>(
      "4-bit neighbours in groups of 8", 2, 8, 7.4f, [](std::uint32_t channels) { return channels / 4; },
      [](auto const& bytes, auto const& pairs) {
        return kvmeld::zero_point_rows(bytes, pairs, code_order::neighbours);
      }));
  out.push_back(beside_format<kvmeld::fp8_e4m3>(
      "nvfp4", 2, 16, 2.5f, [](std::uint32_t channels) { return channels / 16; },
      [](auto const& bytes, auto const& scales) { return kvmeld::nvfp4_rows(bytes, scales, 0.01f); }));
  return out;
}

inline std::vector<format> exact_formats() {
  return {exact_format<float>("float"), exact_format<kvmeld::float16>("half"),
          exact_format<kvmeld::bfloat16>("bfloat16")};
}
inline std::vector<format> quantised_formats() {
  std::vector<format> out{fp8_format<kvmeld::fp8_e4m3>("e4m3"),
                          fp8_format<kvmeld::fp8_e5m2>("e5m2"),
                          int8_format<kvmeld::float16>("int8"),
                          ggml_format<kvmeld::q8_0_rows>("q8_0", 34, 120),
                          ggml_format<kvmeld::q4_0_rows>("q4_0", 18, 3.9f),
                          ggml_format<kvmeld::q4_1_rows>("q4_1", 20, 7.4f),
                          ggml_format<kvmeld::q5_0_rows>("q5_0", 22, 7.9f),
                          ggml_format<kvmeld::q5_1_rows>("q5_1", 24, 15)};
  for (format& f : packed_formats()) out.push_back(std::move(f));
  return out;
}

}  // namespace cross_test
