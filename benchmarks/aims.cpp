#include "aims.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

namespace kvmeld_bench {

namespace {

/// Lengths of text that an aim is about, both included; the worst row counts.
struct lengths {
  std::uint32_t least, most;
};
constexpr lengths at_4096{4096, 4096}, at_65536{65536, 65536}, from_65536{65536, 0xffffffffu};

/// An aim for every row of a name.
struct row_aim {
  char const* what;
  char const* name;  ///< of the row; one that ends in "/" stands for the rows of every policy
  lengths of;
  std::optional<double> row::*ratio;
  double f32, bf16;  ///< at most
};

constexpr double share_of_sgemm = 0.85;

constexpr row_aim row_aims[] = {
    {"chunk similarity, x BLAS", "propose/chelsea", from_65536, &row::ratio_to_blas, 1 / share_of_sgemm,
     1 / share_of_sgemm},
    {"compression by Chelsea, 4096 entries, x similarity + memcpy", "compress/chelsea", at_4096,
     &row::ratio_to_parts, 2.5, 2.5},
    {"compression by Chelsea, x similarity + memcpy", "compress/chelsea", from_65536, &row::ratio_to_parts,
     2.0, 2.0},
    {"compression by KVMerger, 65536 entries, x memcpy", "compress/kvmerger", at_65536, &row::ratio_to_memcpy,
     5.0, 8.0},
    {"merge and compact keys along tokens, 65536 entries, x memcpy", "apply_transposed/", at_65536,
     &row::ratio_to_memcpy, 3.0, 3.0},
    {"merge and compact vLLM's keys, 65536 entries, x memcpy", "apply_vllm_keys/", at_65536,
     &row::ratio_to_memcpy, 3.0, 3.0},
    {"merge and compact vLLM's values, 65536 entries, x memcpy", "apply_vllm_values/", at_65536,
     &row::ratio_to_memcpy, 3.0, 3.0},
    {"decode step of EMS every 256, 4096 entries, x attention", "decode_step/ems/256", at_4096,
     &row::ratio_to_attention, 0.05, 0.05},
    {"decode step of CaM every 256, 4096 entries, x attention", "decode_step/cam/256", at_4096,
     &row::ratio_to_attention, 0.02, 0.02},
    {"observation of queries, 4096 entries, x their attention", "observe_chunk/all", at_4096,
     &row::ratio_to_attention, 1.3, 1.3},
    {"selection by score, x a pass over the scores", "select/h2o", from_65536, &row::ratio_to_read, 3.0, 3.0},
    {"admission by key, x a pass over the keys", "admit/chelsea", from_65536, &row::ratio_to_read, 3.0, 3.0},
    {"decode attention, merged, x read", "attend/merged", from_65536, &row::ratio_to_read, 1 / 0.7, 1 / 0.7},
};
constexpr double most_growth = 1.03;
constexpr double most_moves = 2.0;

void add(std::vector<aim>& out, report const& figures, row_aim const& wanted, std::string const& dtype) {
  std::string const name = wanted.name;
  std::optional<double> worst;
  for (row const& r : figures.rows) {
    bool const named = name.back() == '/' ? r.name.compare(0, name.size(), name) == 0 : r.name == name;
    bool const inside = r.of.n >= wanted.of.least && r.of.n <= wanted.of.most;
    if (!named || !inside || r.of.dtype != dtype || !(r.*wanted.ratio)) continue;
    worst = std::max(worst.value_or(0.0), *(r.*wanted.ratio));
  }
  if (worst) out.push_back({wanted.what + (", " + dtype), *worst, dtype == "f32" ? wanted.f32 : wanted.bf16});
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
    out.push_back({"merge and compact, " + policy + ", " + std::to_string(n) + " entries, x memcpy, " + dtype,
                   seconds.first / seconds.second, most_moves});
  }
}

}  // namespace

std::vector<aim> judge(report const& figures) {
  std::vector<aim> out;
  for (std::string const dtype : {"f32", "bf16"}) {
    for (row_aim const& wanted : row_aims) add(out, figures, wanted, dtype);
    for (char const* policy : {"chelsea", "kvmerger"}) add_moves(out, figures, policy, dtype);
    for (exponent const& e : figures.exponents()) {
      if (e.dtype == dtype && e.name.rfind("compress/", 0) == 0)
        out.push_back({"cost exponent of " + e.name + ", " + dtype, e.value, most_growth});
    }
  }
  return out;
}

}  // namespace kvmeld_bench
