// SPDX-License-Identifier: Apache-2.0
// Compiled once per instruction set: exponentials, logarithms of degrees, and the two halves of a running
// softmax.

/// exp(x), within 2 units in the last place; NaN stays NaN. Reduces the range by ln 2 and sums the power
/// series up to r^7 / 7!. The rest of the series is below 6e-9 for |r| <= ln 2 / 2.
KVMELD_SIMD floats exponential(floats x) {
  floats const lowest = all(-104.0f);
  floats const highest = all(89.0f);
  floats y = x < lowest ? lowest : x;
  y = y > highest ? highest : y;
  floats const steps = y * 1.44269504f;
  floats const half = float_of((bits_of(steps) & 0x80000000u) | 0x3f000000u);
  integers const n = __builtin_convertvector(steps + half, integers);  // rounds to nearest
  floats const whole = __builtin_convertvector(n, floats);
  floats r = settled(multiply_add(whole, all(-0.693359375f), y));  // ln 2 in two parts, the first of few bits
  r = multiply_add(whole, all(2.12194440e-4f), r);
  floats p = all(1.0f / 5040.0f);
  p = multiply_add(p, r, all(1.0f / 720.0f));
  p = multiply_add(p, r, all(1.0f / 120.0f));
  p = multiply_add(p, r, all(1.0f / 24.0f));
  p = multiply_add(p, r, all(1.0f / 6.0f));
  p = multiply_add(p, r, all(0.5f));
  p = multiply_add(p, r, all(1.0f));
  p = multiply_add(p, r, all(1.0f));
  integers const first = n >> 1;  // two factors: 2^n itself may not fit into a float
  floats const scaled =
      (p * reinterpret_cast<floats>((first + 127) << 23)) * reinterpret_cast<floats>((n - first + 127) << 23);
  integers const nan = reinterpret_cast<integers>(bits_of(x) & 0x7fffffffu) > 0x7f800000;
  return select(reinterpret_cast<words>(nan), x, scaled);
}

/// Turns logits into weights exp(logit - highest) in place, see untyped_kernels::soften. Sums run over 16
/// strided partials and the tree of core/dot.hpp.
KVMELD_ENTRY float soften(float* logits, float const* bias, std::uint32_t n, float* highest, float* sum,
                          bool before) {
  if (bias != nullptr) {
    std::uint32_t t = 0;
    for (; t + width <= n; t += width) store(logits + t, load(logits + t) + load(bias + t));
    for (; t < n; ++t) logits[t] += bias[t];
  }
  float high = before ? *highest : logits[0];
  std::uint32_t t = 0;
  if (n >= width) {
    floats top = load(logits);
    for (t = width; t + width <= n; t += width) {
      floats const x = load(logits + t);
      top = top < x ? x : top;
    }
    for (int i = 0; i < width; ++i) high = high < top[i] ? top[i] : high;
  }
  for (; t < n; ++t) high = high < logits[t] ? logits[t] : high;
  floats part[quarters];
#pragma GCC unroll 4
  for (std::uint32_t q = 0; q < quarters; ++q) part[q] = floats{};
  floats const shift = all(high);
  for (t = 0; t + 16 <= n; t += 16) {
#pragma GCC unroll 4
    for (std::uint32_t q = 0; q < quarters; ++q) {
      floats const w = exponential(load(logits + t + q * width) - shift);
      store(logits + t + q * width, w);
      part[q] += w;
    }
  }
  float partial[16];
  for (std::uint32_t q = 0; q < quarters; ++q) store(partial + q * width, part[q]);
  for (std::uint32_t i = t; i < n; i += width) {
    std::uint32_t const some = n - i < width ? n - i : width;
    floats const w = exponential(load_some(logits + i, some) - shift);
    store_some(logits + i, w, some);
    for (std::uint32_t j = 0; j < some; ++j) partial[i - t + j] += w[j];
  }
  float const factor = before ? std::exp(*highest - high) : 0.0f;
  *sum = *sum * factor + sum_partials(partial);
  *highest = high;
  return factor;
}

/// The sums of `rows` rows and `vectors` vectors of channels at once. A block takes a piece of every row of
/// v, so the first block fetches whole rows: `fetched` channels of each.
template <int rows, int vectors, class T>
KVMELD_SIMD void add_block(float const* p, std::size_t p_ld, float const* factor, T const* v,
                           std::uint32_t tokens, std::size_t v_ld, std::uint32_t fetched, float* total,
                           std::size_t total_ld) {
  floats sum[unsigned{rows}][unsigned{vectors}];
#pragma GCC unroll 4
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < vectors; ++c) {
      sum[r][c] = load(total + static_cast<std::size_t>(r) * total_ld + c * width) * factor[r];
    }
  }
  for (std::uint32_t t = 0; t < tokens; ++t, v += v_ld) {
    if (fetched != 0 && t + rows_ahead < tokens) fetch_row(v + rows_ahead * v_ld, fetched);
    floats value[unsigned{vectors}];
#pragma GCC unroll 4
    for (int c = 0; c < vectors; ++c) value[c] = decode_one(v + c * width);
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r) {
      floats const weight = all(p[static_cast<std::size_t>(r) * p_ld + t]);
#pragma GCC unroll 4
      for (int c = 0; c < vectors; ++c) sum[r][c] = multiply_add(weight, value[c], sum[r][c]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < vectors; ++c) {
      store(total + static_cast<std::size_t>(r) * total_ld + c * width, sum[r][c]);
    }
  }
}
template <int rows, class T>
KVMELD_SIMD void add_rows(float const* p, std::size_t p_ld, float const* factor, T const* v, std::size_t v_ld,
                          std::uint32_t tokens, std::uint32_t d, float* total, std::size_t total_ld) {
  constexpr int vectors = width == 16 ? 4 : 2;
  std::uint32_t c = 0;
  for (; c + vectors * width <= d; c += vectors * width) {
    add_block<rows, vectors>(p, p_ld, factor, v + c, tokens, v_ld, c == 0 ? d : 0, total + c, total_ld);
  }
  for (; c + width <= d; c += width)
    add_block<rows, 1>(p, p_ld, factor, v + c, tokens, v_ld, 0, total + c, total_ld);
  for (; c < d; ++c) {
    for (int r = 0; r < rows; ++r) {
      float& x = total[static_cast<std::size_t>(r) * total_ld + c];
      x *= factor[r];
      for (std::uint32_t t = 0; t < tokens; ++t)
        x += p[static_cast<std::size_t>(r) * p_ld + t] * element_traits<T>::to_float(v[t * v_ld + c]);
    }
  }
}
/// total[r][c] = factor[r] * total[r][c] + sum over t of p[r * p_ld + t] * v[t][c], in the order of t.
/// Rows of total lie total_ld elements apart.
template <class T>
KVMELD_ENTRY void add_weighted(float const* p, std::uint32_t rows, std::uint32_t p_ld, float const* factor,
                               T const* v, std::size_t v_ld, std::uint32_t tokens, std::uint32_t d,
                               float* total, std::size_t total_ld) {
  std::uint32_t r = 0;
  for (; r + 4 <= rows; r += 4) {
    add_rows<4>(p + std::size_t{r} * p_ld, p_ld, factor + r, v, v_ld, tokens, d, total + r * total_ld,
                total_ld);
  }
  for (; r < rows; ++r) {
    add_rows<1>(p + std::size_t{r} * p_ld, p_ld, factor + r, v, v_ld, tokens, d, total + r * total_ld,
                total_ld);
  }
}

/// out[j] += exp(logits[j] + bias[j] - norm); bias may be null.
KVMELD_ENTRY void add_exponentials(float const* logits, float const* bias, std::uint32_t n, float norm,
                                   float* out) {
  floats const shift = all(norm);
  std::uint32_t j = 0;
  for (; j + width <= n; j += width) {
    floats const x = bias == nullptr ? load(logits + j) : load(logits + j) + load(bias + j);
    store(out + j, load(out + j) + exponential(x - shift));
  }
  if (j == n) return;
  floats x = load_some(logits + j, n - j);
  if (bias != nullptr) x = x + load_some(bias + j, n - j);
  store_some(out + j, load_some(out + j, n - j) + exponential(x - shift), n - j);
}

/// log_of_degree of core/ledger.hpp, within 2 units in the last place. The logarithm of the mantissa m is 2
/// artanh((m - 1) / (m + 1)), as a power series; the rest of the series is below 1e-9.
KVMELD_SIMD floats log_of_degrees(floats degree) {
  words const u = bits_of(degree) - 0x3f3504f3u;  // mantissas from sqrt(1/2) to sqrt(2)
  integers const e = reinterpret_cast<integers>(u) >> 23;
  floats const m = float_of((u & 0x007fffffu) + 0x3f3504f3u);
  floats const s = (m - 1.0f) / (m + 1.0f);
  floats const z = s * s;
  floats p = all(2.0f / 11.0f);
  p = multiply_add(p, z, all(2.0f / 9.0f));
  p = multiply_add(p, z, all(2.0f / 7.0f));
  p = multiply_add(p, z, all(2.0f / 5.0f));
  p = multiply_add(p, z, all(2.0f / 3.0f));
  p = multiply_add(p, z, all(2.0f));
  floats const exponent = __builtin_convertvector(e, floats);
  floats const log =
      multiply_add(exponent, all(0.693359375f), multiply_add(p, s, exponent * -2.12194440e-4f));
  integers const positive = reinterpret_cast<integers>(bits_of(degree)) > 0;
  return select(reinterpret_cast<words>(positive), log, all(element_traits<float>::lowest));
}
KVMELD_ENTRY void log_degrees(float const* degree, std::uint32_t n, float* out) {
  std::uint32_t i = 0;
  for (; i + width <= n; i += width) store(out + i, log_of_degrees(load(degree + i)));
  if (i < n) store_some(out + i, log_of_degrees(load_some(degree + i, n - i)), n - i);
}
