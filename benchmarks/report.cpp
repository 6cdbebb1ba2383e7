#include "report.hpp"

#include "aims.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>
#include <ostream>

namespace kvmeld_bench {

namespace {

char const* const legend =
    "A stage runs as one launch over the eight heads of one layer, as compress launches it, median of at "
    "least three\n"
    "runs. GB/s and x memcpy count the bytes that a stage cannot avoid to read and write, each once:\n"
    "  launch                     none: a launch that finds nothing to do, which every stage pays once\n"
    "  inspect, observe, propose  the keys (observe_rows: 32 rows of probabilities per query head) and the "
    "figures per\n"
    "                             entry that change\n"
    "  score, fit                 the keys, values and tables that they read; an entry's score, or the "
    "values "
    "that stay, written\n"
    "  weigh, merge               the rows of sets of two or more, read; their pivots, written (weigh of "
    "chelsea reads\n"
    "                             degrees only)\n"
    "  apply_LAYOUT, evict_LAYOUT both of these for keys in other layouts; where nothing merges, compaction "
    "alone\n"
    "  compact                    rows that change their slot, read and written; emptied rows of V, zeroed\n"
    "  other stages               the ledger's and the plan's figures per entry, without the scratch between "
    "passes\n"
    "  compress                   K and V read once, what stays written once (streaming_llm, h2o, snapkv: "
    "only what\n"
    "                             stays, read and written); to a fifth of the entries, ems and d2o to 768\n"
    "  decode_step                K and V of the entries held; one compression every 64 or 256 tokens, x "
    "attend over the\n"
    "                             attention of as many decode steps before they merged; x BLAS (ems) over "
    "sgemm "
    "of its\n"
    "                             matching\n"
    "  observe_chunk, _step       none; 320 queries of a prompt, or one: x attend over the attention that "
    "they accompany; "
    "step\n"
    "                             rows are both together, as two calls (apart) or one (fused)\n"
    "  feature/PRESET             none; a compression to a fifth: x plain over the row that ends in /plain\n"
    "  attend                     K, V and degrees of the entries held; one query, four query heads per KV "
    "head\n"
    "x memcpy is the time over that of a memcpy with the same number of threads which moves as many bytes (a "
    "memcpy of B\n"
    "bytes moves 2 B). x BLAS is the time of the chunk similarity over that of its matrix products alone in "
    "float, by\n"
    "one-threaded sgemm calls on as many threads. propose of kvmerger is the whole search for its threshold. "
    "Stages of\n"
    "chelsea are its first round; compress runs all of them. The exponent is log(seconds per "
    "head) over\n"
    "log(entries). x read is the time over that of a plain sum: over as many bytes (attend), over the scores "
    "of all entries\n"
    "(select), over the keys of all candidates as they lie (admit). x parts is the time of a compression "
    "over "
    "that of its\n"
    "own similarities and of a memcpy as above. A million entries: two heads instead of eight.\n";

std::string fixed(double x, int digits) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", digits, x);
  return text;
}

/// Three significant digits for small figures, no more than three decimals.
std::string figure(double x) { return fixed(x, x < 10 ? 3 : x < 100 ? 2 : 1); }

std::string ratio(std::optional<double> x) { return x ? fixed(*x, 2) : "-"; }

using line = std::vector<std::string>;

/// First column to the left, the others to the right.
void print_table(std::ostream& out, std::vector<line> const& lines) {
  std::vector<std::size_t> width(lines.front().size());
  for (line const& l : lines) {
    for (std::size_t c = 0; c < l.size(); ++c) width[c] = std::max(width[c], l[c].size());
  }
  for (line const& l : lines) {
    for (std::size_t c = 0; c < l.size(); ++c) {
      std::string const space(width[c] - l[c].size(), ' ');
      out << (c == 0 ? l[c] + space : "  " + space + l[c]);
    }
    out << '\n';
  }
}

}  // namespace

std::vector<exponent> report::exponents() const {
  std::vector<exponent> out;
  for (row const& shortest : rows) {
    row const* longest = &shortest;
    bool is_shortest = true;
    for (row const& other : rows) {
      if (other.name != shortest.name || other.of.dtype != shortest.of.dtype) continue;
      if (other.of.n < shortest.of.n) is_shortest = false;
      if (other.of.n > longest->of.n) longest = &other;
    }
    if (!is_shortest || longest == &shortest) continue;
    double const growth = static_cast<double>(longest->of.n) / shortest.of.n;
    double const cost =
        longest->seconds / heads_of(longest->of.n) * heads_of(shortest.of.n) / shortest.seconds;
    out.push_back({shortest.name, shortest.of.dtype, std::log(cost) / std::log(growth)});
  }
  return out;
}

void report::print(std::ostream& out) const {
  for (auto const& [name, value] : machine) out << name << ": " << value << '\n';
  if (!rows.empty()) {
    std::vector<line> lines{{"", "entries", "head_dim", "dtype", "ms", "GB/s", "x memcpy", "x BLAS", "x read",
                             "x attend", "x parts", "x plain"}};
    for (row const& r : rows) {
      lines.push_back({r.name, std::to_string(r.of.n), std::to_string(head_dim), r.of.dtype,
                       figure(r.seconds * 1e3), r.bytes > 0.0 ? figure(r.bytes / r.seconds * 1e-9) : "-",
                       ratio(r.ratio_to_memcpy), ratio(r.ratio_to_blas), ratio(r.ratio_to_read),
                       ratio(r.ratio_to_attention), ratio(r.ratio_to_parts), ratio(r.ratio_to_plain)});
    }
    out << '\n' << legend << '\n';
    print_table(out, lines);
  }
  std::vector<line> growth{{"cost exponent", "dtype", ""}};
  for (exponent const& e : exponents()) {
    if (e.name.rfind("compress/", 0) == 0) growth.push_back({e.name, e.dtype, fixed(e.value, 3)});
  }
  if (growth.size() > 1) {
    out << '\n';
    print_table(out, growth);
  }
  std::vector<line> aims{{"aim (65536 entries and more, where it does not say)", "worst", "at most", ""}};
  for (aim const& a : judge(*this)) {
    aims.push_back({a.what, fixed(a.worst, 2), fixed(a.limit, 2), a.met() ? "met" : "missed"});
  }
  if (aims.size() > 1) {
    out << '\n';
    print_table(out, aims);
  }
  std::vector<line> memory_lines{{"memory", "", ""}};
  for (memory_row const& m : memory) {
    memory_lines.push_back({m.name, fixed(m.value, m.value == std::floor(m.value) ? 0 : 2), m.unit});
  }
  out << '\n';
  print_table(out, memory_lines);
}

void report::write_json(std::ostream& out) const {
  using json = nlohmann::ordered_json;
  auto const or_null = [](std::optional<double> x) { return x ? json(*x) : json(nullptr); };
  json all{{"rows", json::array()},
           {"memory", json::array()},
           {"exponents", json::array()},
           {"aims", json::array()},
           {"machine", json::object()}};
  for (row const& r : rows) {
    all["rows"].push_back({{"name", r.name},
                           {"n", r.of.n},
                           {"head_dim", head_dim},
                           {"dtype", r.of.dtype},
                           {"seconds", r.seconds},
                           {"bytes", r.bytes},
                           {"ratio_to_memcpy", or_null(r.ratio_to_memcpy)},
                           {"ratio_to_blas", or_null(r.ratio_to_blas)},
                           {"ratio_to_read", or_null(r.ratio_to_read)},
                           {"ratio_to_attention", or_null(r.ratio_to_attention)},
                           {"ratio_to_parts", or_null(r.ratio_to_parts)},
                           {"ratio_to_plain", or_null(r.ratio_to_plain)}});
  }
  for (memory_row const& m : memory)
    all["memory"].push_back({{"name", m.name}, {"value", m.value}, {"unit", m.unit}});
  for (exponent const& e : exponents())
    all["exponents"].push_back({{"name", e.name}, {"dtype", e.dtype}, {"exponent", e.value}});
  for (aim const& a : judge(*this)) {
    all["aims"].push_back({{"what", a.what}, {"worst", a.worst}, {"limit", a.limit}, {"met", a.met()}});
  }
  for (auto const& [name, value] : machine) all["machine"][name] = value;
  out << all.dump(2) << '\n';
}

}  // namespace kvmeld_bench
