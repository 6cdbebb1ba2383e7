#include "aims.hpp"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>

namespace kvmeld_bench {

namespace {

using ratio_of_row = std::optional<double> row::*;

/// Rows whose name begins with `name` ("merge_keys/" is every policy's).
void add(std::vector<aim>& out, report const& figures, std::string const& what, std::string const& name,
         std::string const& dtype, ratio_of_row ratio, double limit) {
  std::optional<double> worst;
  for (row const& r : figures.rows) {
    bool const whole = name.back() != '/';
    bool const named = whole ? r.name == name : r.name.compare(0, name.size(), name) == 0;
    if (!named || r.of.dtype != dtype || (r.of.n < 65536 && ratio != &row::ratio_to_attention) || !(r.*ratio))
      continue;
    worst = std::max(worst.value_or(0.0), *(r.*ratio));
  }
  if (worst) out.push_back({what + ", " + dtype, *worst, limit});
}

/// Keys and values of one policy merged and compacted, together, over the memcpys of what each must move.
void add_moves(std::vector<aim>& out, report const& figures, std::string const& policy,
               std::string const& dtype) {
  std::map<std::uint32_t, std::pair<double, double>> by_length;
  for (row const& r : figures.rows) {
    if (r.of.dtype != dtype || r.of.n < 65536 || !r.ratio_to_memcpy) continue;
    for (char const* stage : {"merge_keys/", "merge_values/", "compact_keys/", "compact_values/"}) {
      if (r.name != stage + policy) continue;
      by_length[r.of.n].first += r.seconds;
      by_length[r.of.n].second += r.seconds / *r.ratio_to_memcpy;
    }
  }
  for (auto const& [n, seconds] : by_length) {
    out.push_back({"merge and compact, " + policy + ", " + std::to_string(n) + ", x memcpy, " + dtype,
                   seconds.first / seconds.second, 2.0});
  }
}

}  // namespace

std::vector<aim> judge(report const& figures) {
  std::vector<aim> out;
  for (std::string const dtype : {"f32", "bf16"}) {
    add(out, figures, "chunk similarity, x BLAS", "propose/chelsea", dtype, &row::ratio_to_blas,
        dtype == "f32" ? 1 / 0.6 : 1 / 0.4);
    for (char const* policy : {"chelsea", "kvmerger"}) add_moves(out, figures, policy, dtype);
    for (char const* stage : {"merge_values_transposed/", "compact_values_transposed/"}) {
      add(out, figures, std::string(stage) + "*, x memcpy", stage, dtype, &row::ratio_to_memcpy, 2.0);
    }
    add(out, figures, "selection by score, x a pass over the scores", "select/h2o", dtype,
        &row::ratio_to_read, 3.0);
    add(out, figures, "admission by key, x a pass over the keys", "admit/chelsea", dtype, &row::ratio_to_read,
        3.0);
    add(out, figures, "compression by Chelsea, x similarity + memcpy", "compress/chelsea", dtype,
        &row::ratio_to_parts, 2.0);
    add(out, figures, "decode attention, merged, x read", "attend/merged", dtype, &row::ratio_to_read,
        1 / 0.7);
    for (char const* method : {"decode_step/ems/256", "decode_step/cam/256"}) {
      add(out, figures, std::string(method) + ", x attention of its steps, 4096 entries", method, dtype,
          &row::ratio_to_attention, 0.02);
    }
    for (exponent const& e : figures.exponents()) {
      if (e.dtype == dtype && e.name.rfind("compress/", 0) == 0) {
        out.push_back({"cost exponent of " + e.name + ", " + dtype, e.value, 1.05});
      }
    }
  }
  return out;
}

}  // namespace kvmeld_bench
