// Attention over tracks of several tiles per warp, with 16-bit queries, on a device as on the host.
#pragma once

#include "layouts.hpp"

#include <string>

namespace device_test {

/// One to three queries of sequences of these lengths.
template <class K, class V, class Device>
void attended_tiles(Device const& device, char const* name, std::uint32_t channels,
                    std::vector<std::uint32_t> const& lengths) {
  CAPTURE(std::string(name));
  CAPTURE(channels);
  using T = typename Device::bfloat16;
  kvmeld::shape const s{1, 3, 1, 4, channels, channels, 544};
  laid_out<K, V, Device> rows(s);
  noise n(channels);
  auto const policy = kvmeld::preset::streaming_llm::with_sinks(2);
  kvmeld::merged_cache here{kvmeld::host_executor(1, kvmeld::tuning::off), policy, rows.tensors(side::here),
                            kvmeld::cache_options{s}};
  kvmeld::merged_cache there{device.executor(kvmeld::tuning::on), policy, rows.tensors(side::there),
                             kvmeld::cache_options{s}};
  for (std::uint32_t sequence = 0; sequence < 3; ++sequence) {
    rows.write(n, sequence, 0, lengths[sequence]);
    here.open(sequence, lengths[sequence]);
    there.open(sequence, lengths[sequence]);
  }
  std::vector<std::uint32_t> const sequences{0, 1, 2}, queries{1, 2, 3};
  std::uint32_t const most = 3, heads = s.query_heads();
  std::vector<T> q;
  for (std::uint32_t i = 0; i < 3 * most * heads * channels; ++i)
    q.push_back(kvmeld::element_traits<T>::from_float(n.uniform()));
  std::vector<float> out(std::size_t{3} * most * heads * channels);
  typename Device::template array<T> const far_q(q);
  typename Device::template array<float> far_out(out);
  auto const attend = [&](auto& cache, T const* from, float* to, kvmeld::attention_params const& params,
                          kvmeld::attention::split_keys split = {}) {
    kvmeld::attention::attend(cache.executor(), {0, sequences, queries},
                              kvmeld::rows_by_token<T const>(from, most, heads, channels), cache.ref(),
                              kvmeld::rows_by_token(to, most, heads, channels), {}, params, split);
  };
  std::size_t const floats = kvmeld::attention::split_floats(s, 2, 3, most);
  typename Device::template array<float> memory(floats);
  kvmeld::attention_params windowed;
  windowed.window = 90;
  windowed.window_sinks = 5;
  for (bool const through_window : {false, true}) {
    CAPTURE(through_window);
    kvmeld::attention_params const params = through_window ? windowed : kvmeld::attention_params{};
    std::fill(out.begin(), out.end(), 0.0f);
    attend(here, q.data(), out.data(), params);
    for (bool const split : {false, true}) {  // two parts per track: the longest one gets most of them
      if (through_window && !split) continue;
      CAPTURE(split);
      far_out.put(std::vector<float>(out.size()));
      attend(there, far_q.data(), far_out.data(), params,
             split ? kvmeld::attention::split_keys{2, {memory.data(), floats}}
                   : kvmeld::attention::split_keys{});
      REQUIRE(Device::settled(there.executor()));
      std::vector<float> const got = far_out.get();
      for (std::size_t i = 0; i < out.size(); ++i) CHECK(got[i] == doctest::Approx(out[i]).epsilon(3e-4));
    }
  }
}

/// Eight warps take 128 tokens at a time.
template <class Device> void attended_tiles(Device const& device) {
  using pages = head_pages<Device>;
  using blocks = pointed_blocks<Device>;  // not all of them at multiples of 16 bytes
  attended_tiles<pages, pages>(device, "pages by number", 128, {3, 130, 530});
  attended_tiles<pages, blocks>(device, "pages by number and by pointer", 96, {17, 128, 257});
  attended_tiles<blocks, pages>(device, "pages by pointer and by number", 64, {16, 65, 384});
  attended_tiles<fp8_rows<Device>, fp8_rows<Device>>(device, "fp8", 128, {3, 130, 530});
  attended_tiles<fp8_rows<Device>, pages>(device, "fp8 keys", 96, {16, 65, 384});
  attended_tiles<pages, blocks>(device, "long rows", 256, {3, 130, 384});
  attended_tiles<fp8_rows<Device>, fp8_rows<Device>>(device, "long rows of fp8", 192, {3, 130, 384});
}

}  // namespace device_test
